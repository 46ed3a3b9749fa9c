"""Options of other servers that change an answer, and that this one does not know; pure.

They are refused by name: a client that sends one would otherwise take the answer for something that
it is not. What only hints at how to compute an answer is ignored, like all unknown fields.
"""

from typing import Any

import msgspec

from meshnet_common.openai.errors import unsupported_value

_INSTEAD = {
    "guided_json": "`response_format`",
    "structured_outputs": "`response_format`",
    "stop_token_ids": "`stop`",
}


class ForeignFields(msgspec.Struct, frozen=True, kw_only=True):
    """Read only to be refused; null, false and empty ask for nothing."""

    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    stop_token_ids: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    prompt_logprobs: Any = None
    use_beam_search: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None


def refuse_foreign_options(fields: ForeignFields) -> None:
    """Raise ApiError 400 that names the first one that asks for something."""
    for name in ForeignFields.__struct_fields__:
        if getattr(fields, name) in (None, False, "", "none", [], {}):
            continue
        instead = _INSTEAD.get(name)
        advice = f" Use {instead}." if instead else ""
        raise unsupported_value(name, f"This release does not support `{name}`.{advice}")
