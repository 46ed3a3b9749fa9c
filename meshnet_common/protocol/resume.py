"""How an answer goes on at another Head Worker: the stream from Head to Tracker, and its record.

A Head Worker answers its Tracker as blocks of lines, each closed by an empty line: notes first, in
comment lines, then at most one `data:` line, which alone is the client's. A block's notes say what
its data has told, so after any whole block the record and what the client has read agree:

    : answer ID CREATED     who the answer is, before all else
    : token-ids 5 7         the tokens behind this data; without data they gave no text yet
    : sent role             or `rest` (text held back until the end), `finish`, `usage`
    : failed 503 5          this data is an error, with its status and perhaps Retry-After
    : alive                 nothing new
    : moved                 this Head Worker leaves: go on at another one

Another Head Worker gets the client's request and the record, and writes exactly what is missing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from meshnet_common.errors import ProtocolError

TOKEN_IDS_HEADER = "x-meshnet-token-ids"  # noqa: S105 - a header's name
RESUME_HEADER = "x-meshnet-resume"

MAX_BLOCK_BYTES = 64 << 20
"""A whole answer is one block."""
MAX_RECORDED_TOKENS = 1 << 20
MAX_RECORD_BYTES = 12 << 20
"""Of a record in JSON: a token is a figure and a comma."""
MAX_ID_CHARACTERS = 128
MAX_TOKEN_ID = (1 << 31) - 1
MAX_CREATED = (1 << 53) - 1
MAX_FIGURE_CHARACTERS = 16

ALIVE_NOTE = "alive"
MOVED_NOTE = "moved"

_DATA = b"data: "
_DONE = b"[DONE]"


class HeadStreamError(ProtocolError):
    """What the Head Worker streams is no answer."""


class Sent(StrEnum):
    """What a client has got of an answer besides the text of its tokens."""

    ROLE = "role"
    REST = "rest"
    FINISH = "finish"
    USAGE = "usage"


class ChoiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has got of one choice."""

    index: int = 0
    token_ids: tuple[int, ...] = ()
    sent: tuple[Sent, ...] = ()


class ResumeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has got of an answer."""

    id: str
    created: int
    choices: tuple[ChoiceRecord, ...]


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a request with `x-meshnet-resume: 1`; `request` is the client's body as it came."""

    request: msgspec.Raw
    record: ResumeRecord


def encode_resume(request: bytes, record: ResumeRecord) -> bytes:
    """Write the body that asks another Head Worker to go on."""
    return msgspec.json.encode(ResumeRequest(request=msgspec.Raw(request), record=record))


def answer_note(answer_id: str, created: int) -> str:
    """Say who the answer is."""
    return f"answer {answer_id} {created}"


def token_ids_note(token_ids: Sequence[int]) -> str:
    """Say which tokens gave the data of this block."""
    return f"token-ids {' '.join(map(str, token_ids))}"


def sent_note(sent: Sent) -> str:
    """Say what the data of this block is, besides text of tokens."""
    return f"sent {sent}"


def failed_note(status: int, retry_after: str | None) -> str:
    """Say that the data of this block is an error."""
    return f"failed {status} {retry_after}" if retry_after else f"failed {status}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The Head Worker has ended the answer with an error."""

    status: int
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class Block:
    """One block: the payload of its data, if it has any, and its notes."""

    payload: bytes | None = None
    answer: tuple[str, int] | None = None
    token_ids: tuple[int, ...] = ()
    sent: tuple[Sent, ...] = ()
    failure: Failure | None = None
    is_moved: bool = False

    @property
    def ends_stream(self) -> bool:
        return self.payload == _DONE


class HeadStream:
    """Reads one Head Worker's stream, in any chunking, and keeps the record of the answer.

    The record may come from the stream of the Head Worker before. It grows only by blocks of which
    the caller says that they were delivered.
    """

    def __init__(
        self, record: ResumeRecord | None = None, max_block_bytes: int = MAX_BLOCK_BYTES
    ) -> None:
        self._max_block_bytes = max_block_bytes
        self._held = bytearray()
        self._searched = 0
        self._identity = None if record is None else (record.id, record.created)
        # One choice, as long as nobody is served several.
        choice = record.choices[0] if record is not None else ChoiceRecord()
        self._token_ids = list(choice.token_ids)
        self._sent = list(choice.sent)

    @property
    def record(self) -> ResumeRecord | None:
        """What was delivered; None before the answer had a name."""
        if self._identity is None:
            return None
        answer_id, created = self._identity
        choice = ChoiceRecord(token_ids=tuple(self._token_ids), sent=tuple(self._sent))
        return ResumeRecord(id=answer_id, created=created, choices=(choice,))

    def feed(self, data: bytes) -> Iterator[Block]:
        """Take the next bytes and yield the blocks that they close; raises HeadStreamError."""
        self._held += data
        while (end := self._held.find(b"\n\n", self._searched)) >= 0:
            self._check_size(end)
            block = _read_block(bytes(self._held[:end]))
            del self._held[: end + 2]
            self._searched = 0
            if len(self._token_ids) + len(block.token_ids) > MAX_RECORDED_TOKENS:
                raise HeadStreamError(f"It has over {MAX_RECORDED_TOKENS} tokens.")
            yield block
        # The first of the two line ends may be here already.
        self._searched = max(0, len(self._held) - 1)
        self._check_size(len(self._held))

    def delivered(self, block: Block) -> None:
        """Add a block to the record: the client has got all of it."""
        self._identity = self._identity or block.answer
        self._token_ids += block.token_ids
        self._sent += (sent for sent in block.sent if sent not in self._sent)

    def _check_size(self, size: int) -> None:
        if size > self._max_block_bytes:
            raise HeadStreamError(f"A block is over {self._max_block_bytes} bytes.")


def _read_block(block: bytes) -> Block:
    if b"\r" in block:
        raise HeadStreamError("Its lines end in two ways.")
    lines = block.split(b"\n")
    payload = None
    if not lines[-1].startswith(b":"):
        last = lines.pop()
        if last and not last.startswith(_DATA):
            raise HeadStreamError("A line is neither comment nor data.")
        payload = last.removeprefix(_DATA) if last else None
    facts = _Facts()
    for line in lines:
        if not line.startswith(b":"):
            raise HeadStreamError("A block has more than its comments and one line of data.")
        facts.take(line[1:])
    return facts.block(payload)


class _Facts:
    """Collects what the notes of one block say; unknown notes say nothing."""

    def __init__(self) -> None:
        self._answer: tuple[str, int] | None = None
        self._token_ids: list[int] = []
        self._sent: list[Sent] = []
        self._failure: Failure | None = None
        self._is_moved = False

    def take(self, note: bytes) -> None:
        try:
            word, *rest = note.decode("ascii").split() or [""]
        except UnicodeDecodeError:
            return
        match word:
            case "answer":
                self._answer = _answer(rest)
            case "token-ids":
                self._token_ids += (_figure(text, MAX_TOKEN_ID) for text in rest)
            case "sent":
                self._sent += map(_sent, rest)
            case "failed":
                self._failure = _failure(rest)
            case "moved":
                self._is_moved = True
            case _:
                pass

    def block(self, payload: bytes | None) -> Block:
        return Block(
            payload=payload,
            answer=self._answer,
            token_ids=tuple(self._token_ids),
            sent=tuple(self._sent),
            failure=self._failure,
            is_moved=self._is_moved,
        )


def _answer(words: Sequence[str]) -> tuple[str, int]:
    if len(words) != 2 or len(words[0]) > MAX_ID_CHARACTERS:
        raise HeadStreamError("It names no answer.")
    return words[0], _figure(words[1], MAX_CREATED)


def _sent(word: str) -> Sent:
    try:
        return Sent(word)
    except ValueError as error:
        raise HeadStreamError("It has sent what no answer has.") from error


def _failure(words: Sequence[str]) -> Failure:
    status = _figure(words[0], 599) if words else 0
    if status < 400:
        raise HeadStreamError("Its error has no status.")
    retry_after = str(_figure(words[1], 86400)) if len(words) > 1 else None
    return Failure(status, retry_after)


def _figure(text: str, most: int) -> int:
    if not (text.isdigit() and len(text) <= MAX_FIGURE_CHARACTERS and int(text) <= most):
        raise HeadStreamError("A figure is none.")
    return int(text)
