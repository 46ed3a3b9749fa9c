"""Whether a grammar can be followed at all: a Head Worker asks before anything is drawn.

What a grammar may cost is bounded here for both ends, in steps and not in time: so both agree, and
so do two Tail Workers of which one is slow.
"""

import llguidance

from meshnet_common.openai.errors import ApiError, unsupported_value

LIMITS = llguidance.LLParserLimits(
    max_items_in_row=10_000,
    initial_lexer_fuel=300_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""A hundred milliseconds to compile it, milliseconds for a mask, tens of megabytes to hold it.

A row has four items for each property that may come next: a thousand of them are let through.
"""
_NOT_VERBOSE = "<non-verbose/>"


def check_grammar(text: str, param: str) -> None:
    """Raise ApiError 400 for a grammar that cannot be followed; takes milliseconds."""
    fault = llguidance.LLMatcher.validate_grammar(text, None, limits=LIMITS)
    if fault:
        raise cannot_be_followed(param, one_line(fault))


def cannot_be_followed(param: str, fault: str) -> ApiError:
    """Say that nobody could keep an answer to a grammar, or only at too high a cost."""
    return unsupported_value(param, f"`{param}` cannot be followed: {fault.rstrip('.')}.")


def one_line(fault: str) -> str:
    """What the library says, without the grammar's own text in many lines."""
    return " ".join(fault.replace(_NOT_VERBOSE, "").split()).rstrip(".")
