"""The notes of a Head Worker's stream to its Tracker, one by one: written here, and read.

What a block of them says is `meshnet_common.protocol.resume`'s to put together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from meshnet_common.errors import ProtocolError
from meshnet_common.protocol.sampling import TokenLogprobs

MAX_ID_CHARACTERS = 128
MAX_TOKEN_ID = (1 << 31) - 1
MAX_CREATED = (1 << 53) - 1
MAX_CHOICE = 127
MAX_COUNT = (1 << 31) - 1
MAX_FIGURE_CHARACTERS = 16

ALIVE_NOTE = "alive"
MOVED_NOTE = "moved"
FELLED_NOTE = "felled"
BLAMED_NOTE = "blamed"


class HeadStreamError(ProtocolError):
    """What the Head Worker streams is no answer."""


class Sent(StrEnum):
    """What a client has got of a choice besides the text of its tokens; usage is the first's."""

    ROLE = "role"
    REST = "rest"
    FINISH = "finish"
    USAGE = "usage"


@dataclass(frozen=True, slots=True)
class Failure:
    """The Head Worker has ended the answer with an error."""

    status: int
    retry_after: str | None


def answer_note(answer_id: str, created: int) -> str:
    """Say who the answer is."""
    return f"answer {answer_id} {created}"


def choice_note(index: int) -> str:
    """Say of which choice this block is; without, it is of the first."""
    return f"choice {index}"


def token_ids_note(token_ids: Sequence[int]) -> str:
    """Say which tokens gave the data of this block."""
    return f"token-ids {' '.join(map(str, token_ids))}"


def logprobs_note(logprobs: Sequence[TokenLogprobs]) -> str:
    """Say how likely the tokens of this block were."""
    return f"logprobs {msgspec.json.encode(logprobs).decode()}"


def held_note(tokens: int) -> str:
    """Say of how many of the newest tokens the client has yet to be told how likely they were."""
    return f"held {tokens}"


def usage_note(prompt_tokens: int, completion_tokens: int) -> str:
    """Say how many tokens the answer has cost so far, over all choices."""
    return f"usage {prompt_tokens} {completion_tokens}"


def alive_note(ahead: int = 0) -> str:
    """Say that there is nothing new, and how many Sessions wait before this one."""
    return f"{ALIVE_NOTE} {ahead}" if ahead else ALIVE_NOTE


def sent_note(sent: Sent) -> str:
    """Say what the data of this block is, besides text of tokens."""
    return f"sent {sent}"


def failed_note(status: int, retry_after: str | None) -> str:
    """Say that the data of this block is an error."""
    return f"failed {status} {retry_after}" if retry_after else f"failed {status}"


def read_answer(words: Sequence[str]) -> tuple[str, int]:
    """Read who the answer is; raises HeadStreamError."""
    if len(words) != 2 or len(words[0]) > MAX_ID_CHARACTERS:
        raise HeadStreamError("It names no answer.")
    return words[0], _figure(words[1], MAX_CREATED)


def read_choice(words: Sequence[str]) -> int:
    """Read of which choice a block is; raises HeadStreamError."""
    return _only_figure(words, MAX_CHOICE)


def read_token_ids(words: Sequence[str]) -> list[int]:
    """Read token ids; raises HeadStreamError."""
    return [_figure(text, MAX_TOKEN_ID) for text in words]


def read_logprobs(words: Sequence[str]) -> tuple[TokenLogprobs, ...]:
    """Read how likely tokens were; raises HeadStreamError."""
    try:
        return msgspec.json.decode("".join(words), type=tuple[TokenLogprobs, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        raise HeadStreamError("It tells no log probabilities.") from error


def read_held(words: Sequence[str]) -> int:
    """Read how many tokens are held; raises HeadStreamError."""
    return _only_figure(words, MAX_COUNT)


def read_sent(word: str) -> Sent:
    """Read what was sent; raises HeadStreamError."""
    try:
        return Sent(word)
    except ValueError as error:
        raise HeadStreamError("It has sent what no answer has.") from error


def read_failure(words: Sequence[str]) -> Failure:
    """Read how an answer has failed; raises HeadStreamError."""
    status = _figure(words[0], 599) if words else 0
    if status < 400:
        raise HeadStreamError("Its error has no status.")
    retry_after = str(_figure(words[1], 86400)) if len(words) > 1 else None
    return Failure(status, retry_after)


def read_ahead(words: Sequence[str]) -> int:
    """Read how many Sessions wait before this one, if it waits; raises HeadStreamError."""
    return _figure(words[0], MAX_COUNT) if words else 0


def read_usage(words: Sequence[str]) -> tuple[int, int]:
    """Read how many tokens the answer has cost; raises HeadStreamError."""
    if len(words) != 2:
        raise HeadStreamError("It tells no usage.")
    return _figure(words[0], MAX_COUNT), _figure(words[1], MAX_COUNT)


def _only_figure(words: Sequence[str], most: int) -> int:
    if len(words) != 1:
        raise HeadStreamError("It is not one figure.")
    return _figure(words[0], most)


def _figure(text: str, most: int) -> int:
    if not (text.isdigit() and len(text) <= MAX_FIGURE_CHARACTERS and int(text) <= most):
        raise HeadStreamError("A figure is none.")
    return int(text)
