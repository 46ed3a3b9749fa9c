"""A model's own tokenizer and chat template, read from its folder without transformers.

`TextCodec` is what a Head Worker needs of text: prompt ids from messages, the ids that end an
answer, and a detokenizer for each answer. It blocks for milliseconds on a long prompt, so encode
those off the event loop.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from meshnet_common.errors import MeshnetError
from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.tools import NO_TOOLS, ToolUse
from meshnet_worker.text.call_styles import CallStyle
from meshnet_worker.text.chat_template import ChatTemplate, plain_prompt
from meshnet_worker.text.detokenizer import Detokenizer, Vocabulary, text_of
from meshnet_worker.text.tool_prompts import ToolPrompts

MAX_REASON_CHARACTERS = 300
_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token")


class TextFilesError(MeshnetError):
    """The model's folder has no tokenizer that can be read."""


class TextCodec:
    """Turns messages into token ids and token ids into text, for one model."""

    def __init__(
        self,
        file: Path,
        tokenizer: Tokenizer,
        prompts: ToolPrompts,
        eos_ids: frozenset[int],
    ) -> None:
        self._file = file
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._vocabulary = Vocabulary(tokenizer)
        self.eos_ids = eos_ids
        """Any of these tokens ends an answer."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read tokenizer.json and, where they exist, the template and the configuration files.

        Raises TextFilesError.
        """
        file = folder / "tokenizer.json"
        with _read_from(file):
            tokenizer = Tokenizer.from_file(str(file))
            # What is refused only when it is used should be so here, not in a user's request.
            tokenizer.encode("")
        config = _read_json(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(config)
        prompts = _load_prompts(folder, config, special_tokens)
        with _read_from(folder):
            return cls(file, tokenizer, prompts, _eos_ids(folder, tokenizer, special_tokens))

    def prompt_ids(self, messages: Sequence[ChatMessage], use: ToolUse = NO_TOOLS) -> list[int]:
        """Return the ids of the whole prompt; raises ApiError 400 if the template refuses.

        A model without a template gets one `Role: content` line for each message. Raises
        TextFilesError if the tokenizer fails, which is a fault of its file.
        """
        return self.chat_ids(self.chat_text(messages, use))

    def chat_text(self, messages: Sequence[ChatMessage], use: ToolUse = NO_TOOLS) -> str:
        """Write the whole prompt; raises ApiError 400 if the template refuses."""
        return self._prompts.prompt(messages, use)

    def chat_ids(self, text: str) -> list[int]:
        """Return the ids of what `chat_text` has written; raises TextFilesError."""
        # A template writes the special tokens itself.
        is_plain = self._prompts.render is plain_prompt
        return self._ids(text, add_special_tokens=is_plain)

    def text_ids(self, text: str) -> list[int]:
        """Return the ids of a text that is no chat; raises TextFilesError."""
        return self._ids(text, add_special_tokens=True)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with _read_from(self._file):
            # Unlike `encode`, this lets other threads run: megabytes take seconds.
            (told,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
            return told.ids

    @property
    def call_style(self) -> CallStyle:
        """How the model writes tool calls; takes milliseconds the first time."""
        ids = self._vocabulary.special_ids
        names = {name: i for i in ids if (name := self._tokenizer.id_to_token(i))}
        return self._prompts.style.with_special(names)

    def detokenizer(self) -> Detokenizer:
        """Begin the text of one answer."""
        return self._vocabulary.detokenizer()

    def text_of(self, token_ids: Iterable[int]) -> str:
        """Return the whole text of an answer, exactly what its stream joins to."""
        return text_of(self.detokenizer(), token_ids)


def _load_prompts(
    folder: Path, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> ToolPrompts:
    file = folder / "chat_template.jinja"
    with _read_from(file):
        source = file.read_text(encoding="utf-8") if file.exists() else None
        source = source or _template_in(config, "default")
        if source is None:
            return ToolPrompts(plain_prompt)
        for_tools = _template_in(config, "tool_use")
        return ToolPrompts(
            ChatTemplate(source, special_tokens).render,
            ChatTemplate(for_tools, special_tokens).render if for_tools else None,
        )


def _template_in(config: Mapping[str, Any], name: str) -> str | None:
    match config.get("chat_template"):
        case str(source):
            return source if name == "default" else None
        case list(named):
            return next((found for entry in named if (found := _named(entry, name))), None)
        case _:
            return None


def _named(entry: object, name: str) -> str | None:
    match entry:
        case {"name": str(found), "template": str(source)} if found == name:
            return source
        case _:
            return None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _token_text(config.get(name)) for name in _SPECIAL_TOKEN_NAMES}
    return {name: text for name, text in found.items() if text is not None}


def _token_text(entry: object) -> str | None:
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else None


def _eos_ids(
    folder: Path, tokenizer: Tokenizer, special_tokens: Mapping[str, str]
) -> frozenset[int]:
    generation = _read_json(folder / "generation_config.json")
    model = _read_json(folder / "config.json")
    stated = generation.get("eos_token_id", model.get("eos_token_id"))
    ids = set(stated if isinstance(stated, list) else [stated])
    # Some chat models end a turn with the tokenizer's own end token, which no config names.
    ids.add(tokenizer.token_to_id(special_tokens.get("eos_token", "")))
    return frozenset(token_id for token_id in ids if isinstance(token_id, int))


def _read_json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    with _read_from(file):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TextFilesError(f"{file.name} holds no JSON object.")
    return content


@contextmanager
def _read_from(place: Path) -> Iterator[None]:
    """Name the file that cannot be used, whatever the libraries raise about it."""
    try:
        yield
    except TextFilesError:
        raise
    except BaseException as error:
        # A panic of the tokenizers library is no Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
        raise TextFilesError(f"{place.parent.name}/{place.name}: {reason}.") from error
