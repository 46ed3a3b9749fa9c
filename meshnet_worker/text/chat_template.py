"""Renders messages the way a model was trained to see them, by the template in its own folder.

Templates come with downloaded models, so they run where they can reach nothing else. The settings,
filters and functions are those that transformers gives templates: the same text must come out.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment

from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.messages import ChatMessage

# Besides those that templates mean: one that was written for other messages fails in Python's way.
_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class ChatTemplate:
    """One compiled template; `special_tokens` are names such as `bos_token` that it may use."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._template = _compile(source)
        self._special_tokens = special_tokens

    def render(
        self,
        messages: Sequence[ChatMessage | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the prompt up to where the answer begins; raises ApiError 400 if refused."""
        try:
            return self._template.render(
                messages=msgspec.to_builtins(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except _REFUSALS as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise invalid_request(message, "messages") from error


def plain_prompt(
    messages: Sequence[Mapping[str, Any]], _tools: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Render for a model without template: one `Role: content` line a turn, then `Assistant:`."""
    turns = [f"{turn['role'].capitalize()}: {turn['content']}\n" for turn in messages]
    return "".join(turns) + "Assistant:"


class _OnlyTranslating(CodeGenerator):
    """Computes nothing ahead: `'a' * 10**9` would take a load's time and memory."""

    def _output_child_to_const(
        self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo
    ) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class: type[CodeGenerator] = _OnlyTranslating


def _compile(source: str) -> Template:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        optimized=False,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes for HTML, which would put `\u003c` into prompts.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
