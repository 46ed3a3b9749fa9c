"""How an answer goes on at another Head Worker: the stream from Head to Tracker, and its record.

A Head Worker answers its Tracker as blocks of lines, each closed by an empty line: notes first, in
comment lines, then `data:` lines, which alone are the client's, each an event. A block's notes say
what its data has told, so after any whole block the record and what the client has read agree:

    : answer ID CREATED     who the answer is, before all else
    : choice 1              of which choice all this is; the first one's without
    : token-ids 5 7         the tokens behind this data; without data they gave no text yet
    : logprobs [...]        how likely those were, if the client wants to know
    : held 3                of so many of the newest tokens the client has yet to be told that
    : sent role             or `rest` (text held back until the end), `finish`, `usage`
    : usage 12 34           what all choices have cost: tokens of the prompt, and of the answer
    : failed 503 5          this data is an error, with its status and perhaps Retry-After
    : alive 2               nothing new, and so many Sessions wait before this one
    : blamed                and it is rather the request that fails, wherever it runs
    : moved                 this Head Worker leaves: go on at another one
    : felled                and it does since its engine was lost

Another Head Worker gets the client's request and the record, and writes exactly what is missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from meshnet_common.protocol import notes
from meshnet_common.protocol.notes import Failure, HeadStreamError, Sent
from meshnet_common.protocol.sampling import TokenLogprobs

TOKEN_IDS_HEADER = "x-meshnet-token-ids"  # noqa: S105 - a header's name
RESUME_HEADER = "x-meshnet-resume"

MAX_BLOCK_BYTES = 64 << 20
"""A whole answer is one block."""
MAX_RECORDED_TOKENS = 1 << 20
"""Of all choices."""
MAX_RECORD_BYTES = 16 << 20
"""Of a record in JSON: a token is a figure and a comma, and up to a kilobyte where twenty others
are told with each until the answer is whole."""
_TOKEN_BYTES, _LOGPROB_BYTES, _OTHER_BYTES = 11, 32, 38
"""At most: of a token id, of how likely it was, and of each other one with that."""

_DATA = b"data: "
_DONE = b"[DONE]"


class ChoiceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client has got of one choice; `logprobs` are of its newest tokens, as far as held."""

    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    sent: tuple[Sent, ...] = ()


class ResumeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has got of an answer: of the first choice, and of all others with something."""

    id: str
    created: int
    choices: tuple[ChoiceRecord, ...]

    def choice(self, index: int) -> ChoiceRecord:
        """What it has got of one choice."""
        found = (choice for choice in self.choices if choice.index == index)
        return next(found, ChoiceRecord(index=index))


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a request with `x-meshnet-resume: 1`; `request` is the client's body as it came."""

    request: msgspec.Raw
    record: ResumeRecord


def encode_resume(request: bytes, record: ResumeRecord) -> bytes:
    """Write the body that asks another Head Worker to go on."""
    return msgspec.json.encode(ResumeRequest(request=msgspec.Raw(request), record=record))


def most_tokens_told_at_once(others: int) -> int:
    """How many tokens a record can hold with how likely each was, and so many others each.

    So long a whole answer may be that tells all of it in the end; a stream has told it before.
    """
    return MAX_RECORD_BYTES // (_TOKEN_BYTES + _LOGPROB_BYTES + others * _OTHER_BYTES)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: the payloads of its data, if it has any, and its notes."""

    payloads: tuple[bytes, ...] = ()
    answer: tuple[str, int] | None = None
    choice: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    held: int | None = None
    sent: tuple[Sent, ...] = ()
    usage: tuple[int, int] | None = None
    ahead: int = 0
    failure: Failure | None = None
    is_blamed: bool = False
    is_moved: bool = False
    is_felled: bool = False

    @property
    def payload(self) -> bytes | None:
        """The last one: the only one of most blocks."""
        return self.payloads[-1] if self.payloads else None

    @property
    def ends_stream(self) -> bool:
        return self.payload == _DONE


@dataclass(slots=True)
class _Growing:
    """The record of one choice while its answer grows."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def take(self, block: Block) -> None:
        self.token_ids += block.token_ids
        self.logprobs += block.logprobs
        if block.held is not None:
            del self.logprobs[: max(0, len(self.logprobs) - block.held)]
        self.sent += (sent for sent in block.sent if sent not in self.sent)

    def record(self, index: int) -> ChoiceRecord:
        return ChoiceRecord(
            index=index,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            sent=tuple(self.sent),
        )


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
        # The first one is there from the start, as no answer has none.
        self._choices = {0: _Growing()} | {
            one.index: _Growing(list(one.token_ids), list(one.logprobs), list(one.sent))
            for one in (record.choices if record is not None else ())
        }

    @property
    def record(self) -> ResumeRecord | None:
        """What was delivered; None before the answer had a name."""
        if self._identity is None:
            return None
        answer_id, created = self._identity
        choices = tuple(self._choices[index].record(index) for index in sorted(self._choices))
        return ResumeRecord(id=answer_id, created=created, choices=choices)

    def feed(self, data: bytes) -> Iterator[Block]:
        """Take the next bytes and yield the blocks that they close; raises HeadStreamError."""
        self._held += data
        while (end := self._held.find(b"\n\n", self._searched)) >= 0:
            self._check_size(end)
            block = _read_block(bytes(self._held[:end]))
            del self._held[: end + 2]
            self._searched = 0
            if self._tokens + len(block.token_ids) > MAX_RECORDED_TOKENS:
                raise HeadStreamError(f"It has over {MAX_RECORDED_TOKENS} tokens.")
            yield block
        # The first of the two line ends may be here already.
        self._searched = max(0, len(self._held) - 1)
        self._check_size(len(self._held))

    def delivered(self, block: Block) -> None:
        """Add a block to the record: the client has got all of it."""
        self._identity = self._identity or block.answer
        if block.token_ids or block.sent:
            self._choices.setdefault(block.choice, _Growing()).take(block)

    @property
    def _tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self._choices.values())

    def _check_size(self, size: int) -> None:
        if size > self._max_block_bytes:
            raise HeadStreamError(f"A block is over {self._max_block_bytes} bytes.")


def _read_block(block: bytes) -> Block:
    if b"\r" in block:
        raise HeadStreamError("Its lines end in two ways.")
    facts = _Facts()
    for line in block.split(b"\n") if block else ():
        if line.startswith(b":"):
            if facts.payloads:
                raise HeadStreamError("A note comes behind the data that it explains.")
            facts.take(line[1:])
        elif line.startswith(_DATA):
            facts.payloads.append(line.removeprefix(_DATA))
        else:
            raise HeadStreamError("A line is neither comment nor data.")
    return facts.block()


@dataclass(slots=True)
class _Facts:
    """Collects what one block says; unknown notes say nothing."""

    payloads: list[bytes] = field(default_factory=list)
    answer: tuple[str, int] | None = None
    choice: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    held: int | None = None
    sent: list[Sent] = field(default_factory=list)
    usage: tuple[int, int] | None = None
    ahead: int = 0
    failure: Failure | None = None
    is_blamed: bool = False
    is_moved: bool = False
    is_felled: bool = False

    def take(self, note: bytes) -> None:
        try:
            word, *rest = note.decode("ascii").split() or [""]
        except UnicodeDecodeError:
            return
        match word:
            case "answer":
                self.answer = notes.read_answer(rest)
            case "choice":
                self.choice = notes.read_choice(rest)
            case "usage":
                self.usage = notes.read_usage(rest)
            case "alive":
                self.ahead = notes.read_ahead(rest)
            case "failed":
                self.failure = notes.read_failure(rest)
            case _:
                self._take_tokens(word, rest)

    def _take_tokens(self, word: str, rest: list[str]) -> None:
        match word:
            case "token-ids":
                self.token_ids += notes.read_token_ids(rest)
            case "logprobs":
                self.logprobs += notes.read_logprobs(rest)
            case "held":
                self.held = notes.read_held(rest)
            case "sent":
                self.sent += map(notes.read_sent, rest)
            case _:
                self._take_facts(word)

    def _take_facts(self, word: str) -> None:
        self.is_moved |= word == notes.MOVED_NOTE
        self.is_felled |= word == notes.FELLED_NOTE
        self.is_blamed |= word == notes.BLAMED_NOTE

    def block(self) -> Block:
        if len(self.logprobs) > len(self.token_ids):
            raise HeadStreamError("It tells of more tokens than it has.")
        return Block(
            payloads=tuple(self.payloads),
            answer=self.answer,
            choice=self.choice,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            held=self.held,
            sent=tuple(self.sent),
            usage=self.usage,
            ahead=self.ahead,
            failure=self.failure,
            is_blamed=self.is_blamed,
            is_moved=self.is_moved,
            is_felled=self.is_felled,
        )
