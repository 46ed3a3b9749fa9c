import json
from typing import Any

import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.tools import (
    MAX_TOOLS,
    NO_TOOLS,
    ToolBody,
    ToolUse,
    call_id,
    read_arguments,
    read_tool_use,
)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str = "get_weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **function}}


def read(
    tools: list[dict[str, Any]] | None, choice: Any = None, is_parallel: bool | None = None
) -> ToolUse:
    bodies = msgspec.json.decode(json.dumps(tools), type=list[ToolBody] | None)
    return read_tool_use(bodies, choice, is_parallel)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_without_tools_there_is_nothing_to_call() -> None:
    assert read(None) == NO_TOOLS
    assert read(None, is_parallel=True) == NO_TOOLS


def test_tools_are_offered_and_the_model_decides_unless_something_else_is_said() -> None:
    for choice in (None, "auto"):
        use = read([tool("a"), tool("b")], choice)
        assert [one.name for one in use.offered] == ["a", "b"]
        assert (use.is_forced, use.is_parallel) == (False, True)
        assert use.callable_now == use.offered


def test_who_wants_no_call_offers_no_tools() -> None:
    assert read([tool()], "none") == NO_TOOLS


def test_a_required_call_may_be_one_of_any_tool() -> None:
    assert read([tool("a"), tool("b")], "required").must_call == ("a", "b")


def test_a_named_call_is_one_call_of_that_tool_with_all_of_them_in_sight() -> None:
    use = read([tool("a"), tool("b")], named("b"))

    assert (len(use.offered), use.must_call, use.is_parallel) == (2, ("b",), False)
    assert [one.name for one in use.callable_now] == ["b"]


@pytest.mark.parametrize(("mode", "must_call"), [("auto", ()), ("required", ("b",))])
def test_allowed_tools_are_all_that_is_offered(mode: str, must_call: tuple[str, ...]) -> None:
    use = read([tool("a"), tool("b")], allowed(mode, "b"))

    assert [one.name for one in use.offered] == ["b"]
    assert use.must_call == must_call


def test_calls_one_at_a_time_are_a_wish_that_is_kept() -> None:
    assert not read([tool()], is_parallel=False).is_parallel


def test_forced_calls_are_several_only_if_that_is_said() -> None:
    assert not read([tool()], "required").is_parallel
    assert read([tool()], "required", is_parallel=True).is_parallel
    assert not read([tool()], named("get_weather"), is_parallel=True).is_parallel


def test_a_template_is_shown_a_tool_as_clients_write_it() -> None:
    (one,) = read([tool(description="Look outside.", strict=True)]).offered

    assert one.strict
    assert one.shown() == {
        "type": "function",
        "function": {"name": "get_weather", "description": "Look outside.", "parameters": CITY},
    }


def test_a_function_without_parameters_takes_none() -> None:
    (one,) = read([{"type": "function", "function": {"name": "now"}}]).offered

    assert one.parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([], None, "tools"),
        (None, "auto", "tool_choice"),
        (None, "none", "tool_choice"),
        ([tool(str(n)) for n in range(MAX_TOOLS + 1)], None, "tools"),
        ([tool("a"), tool("b"), tool("a")], None, "tools[2].function.name"),
        ([tool("")], None, "tools[0].function.name"),
        ([tool("a b")], None, "tools[0].function.name"),
        ([tool("ä")], None, "tools[0].function.name"),
        ([tool("a\n")], None, "tools[0].function.name"),
        ([tool("a" * 65)], None, "tools[0].function.name"),
        ([tool(description="x" * 70000)], None, "tools[0].function.description"),
        ([tool(parameters={"type": "array"})], None, "tools[0].function.parameters.type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([{"type": "custom", "custom": {"name": "a"}}], None, "tools[0].type"),
        ([tool()], "sometimes", "tool_choice"),
        ([tool()], {}, "tool_choice"),
        ([tool()], {"type": "function"}, "tool_choice"),
        ([tool()], {"type": "function", "function": {"name": 3}}, "tool_choice"),
        ([tool()], named("other"), "tool_choice.function.name"),
        ([tool()], allowed("auto", "other"), "tool_choice.allowed_tools.tools[0].function.name"),
        ([tool()], allowed("auto"), "tool_choice.allowed_tools.tools"),
        (
            [tool()],
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            [tool()],
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["a"]}},
            "tool_choice.allowed_tools.tools[0]",
        ),
        ([tool()], {"type": "allowed_tools", "allowed_tools": []}, "tool_choice"),
        ([tool()], allowed("none", "get_weather"), "tool_choice.allowed_tools.mode"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_field(
    tools: list[dict[str, Any]] | None, choice: Any, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read(tools, choice)

    assert (caught.value.status, caught.value.body.param) == (400, param)


def test_the_most_tools_are_allowed() -> None:
    assert len(read([tool(str(n)) for n in range(MAX_TOOLS)]).offered) == MAX_TOOLS


def test_calls_that_are_forced_or_strict_are_held_to_their_schemas() -> None:
    tools = [tool("a"), tool("b", strict=True), tool("c")]

    def held(choice: Any) -> list[str]:
        return [one.name for one in read(tools, choice).offered if one.held_to is not None]

    assert held(None) == ["b"]
    assert held("required") == ["a", "b", "c"]
    assert held(named("a")) == ["a"]
    assert held(allowed("required", "c")) == ["c"]


def test_a_call_is_held_to_what_its_schema_describes() -> None:
    described = {**CITY, "title": "Where"}
    (one,) = read([tool(parameters=described)], "required").offered

    assert one.held_to == {**CITY, "additionalProperties": False}
    assert one.parameters == described


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**CITY, "additionalProperties": {"type": "string"}},
        {**CITY, "patternProperties": {"^x": {"type": "string"}}},
    ],
)
def test_a_schema_that_is_open_stays_open(schema: dict[str, Any]) -> None:
    assert read([tool(parameters=schema)], "required").offered[0].held_to == schema


def test_only_schemas_that_are_kept_to_must_be_such_that_can_be() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "no such keyword": 1}}}
    tools = [tool("plain"), tool("odd", parameters=odd)]

    assert read(tools).offered[1].parameters == odd
    assert read(tools, named("plain")).offered[1].held_to is None
    for choice in ("required", named("odd")):
        with pytest.raises(ApiError) as caught:
            read(tools, choice)
        assert caught.value.body.param == "tools[1].function.parameters"


def test_schemas_that_are_kept_to_are_bounded_together() -> None:
    large = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500)}}
    tools = [tool(str(n), parameters=large) for n in range(20)]

    assert len(read(tools).offered) == 20
    assert read(tools, named("7")).must_call == ("7",)
    with pytest.raises(ApiError) as caught:
        read(tools, "required")
    assert caught.value.body.param == "tools"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("", {}), ("null", {}), (" {} ", {}), ('{"a": 1}', {"a": 1}), ("[]", None), ("{", None)],
)
def test_arguments_are_an_object_or_nothing(text: str, arguments: dict[str, Any] | None) -> None:
    assert read_arguments(text) == arguments


def test_every_call_has_an_id_of_its_own_which_is_the_same_wherever_it_is_told() -> None:
    places = [(answer, choice, index) for answer in "ab" for choice in (0, 1) for index in (0, 11)]
    ids = [call_id(*place) for place in places]

    assert ids == [call_id(*place) for place in places]
    assert len(set(ids)) == len(ids)
    assert all(one.startswith("call_") for one in ids)
