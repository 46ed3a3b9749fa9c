import json
from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.messages import CalledFunction, ChatMessage, ToolCall
from meshnet_common.openai.tools import NO_TOOLS, FunctionTool, ToolUse
from meshnet_worker.text import call_styles
from meshnet_worker.text.chat_template import ChatTemplate, plain_prompt
from meshnet_worker.text.tool_prompts import ToolPrompts
from tests.worker.text import tool_templates

WEATHER = FunctionTool(
    name="get_weather",
    description="Look outside.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
USE = ToolUse(offered=(WEATHER,))
SYSTEM = ChatMessage(role="system", content="Be brief.")
ASKED = ChatMessage(role="user", content="Rain?")


def call(call_id: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, function=CalledFunction("get_weather", arguments))


def result(call_id: str, content: str) -> ChatMessage:
    return ChatMessage(role="tool", content=content, name="get_weather", tool_call_id=call_id)


CALLED = ChatMessage(role="assistant", content=None, tool_calls=(call("call_1", city="Köln"),))
HISTORY = [ASKED, CALLED, result("call_1", "Yes.")]


def prompts(source: str | None, with_tools: str | None = None) -> ToolPrompts:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    if source is None:
        return ToolPrompts(plain_prompt)
    for_tools = ChatTemplate(with_tools, names).render if with_tools else None
    return ToolPrompts(ChatTemplate(source, names).render, for_tools)


def test_hermes_templates_show_tools_calls_and_results() -> None:
    hermes = prompts(tool_templates.HERMES)

    prompt = hermes.prompt([SYSTEM, *HISTORY], USE)
    assert hermes.style == call_styles.HERMES
    assert f"<tools>\n{json.dumps(WEATHER.shown())}\n</tools>" in prompt
    assert '{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>' in prompt
    assert "<tool_response>\nYes.\n</tool_response>" in prompt


def test_llama_templates_show_tools_calls_and_results() -> None:
    llama = prompts(tool_templates.LLAMA)

    prompt = llama.prompt(HISTORY, USE)
    assert llama.style == call_styles.LLAMA
    assert json.dumps(WEATHER.shown(), indent=4) in prompt
    assert '{"name": "get_weather", "parameters": {"city": "Köln"}}<|eot_id|>' in prompt
    assert 'ipython<|end_header_id|>\n\n"Yes."' in prompt


def test_mistral_templates_show_tools_calls_and_results_under_an_id_of_their_form() -> None:
    mistral = prompts(tool_templates.MISTRAL)

    prompt = mistral.prompt(HISTORY, USE)
    shown = prompt.partition("[TOOL_CALLS] [")[2].partition("]</s>")[0]
    call_id = json.loads(shown).pop("id")
    assert mistral.style == call_styles.MISTRAL
    assert len(call_id) == 9
    assert f'{{"content": Yes., "call_id": "{call_id}"}}' in prompt
    assert '[AVAILABLE_TOOLS] [{"type": "function", ' in mistral.prompt([ASKED], USE)


def test_an_id_of_the_right_form_stays() -> None:
    turns = [ASKED, ChatMessage(role="assistant", content=None, tool_calls=(call("abcdef123"),))]

    assert '"id": "abcdef123"' in prompts(tool_templates.MISTRAL).prompt(turns, NO_TOOLS)


def test_a_templates_own_refusal_of_calls_is_the_clients_to_know() -> None:
    two = ChatMessage(role="assistant", content=None, tool_calls=(call("a"), call("b")))

    with pytest.raises(ApiError, match="single calls only"):
        prompts(tool_templates.LLAMA).prompt([ASKED, two], USE)


def test_a_model_that_knows_no_tools_is_told_of_them_in_a_system_turn() -> None:
    plain = prompts(tool_templates.PLAIN)

    prompt = plain.prompt([SYSTEM, ASKED], USE)
    assert plain.style == call_styles.HERMES
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\n")
    assert f"<tools>\n{json.dumps(WEATHER.shown())}\n</tools>" in prompt
    assert prompt.count("<|im_start|>system") == 1
    assert prompt.endswith("<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n")
    assert plain.prompt([ASKED], USE).count("<|im_start|>system\nYou can call") == 1


def test_a_model_that_knows_no_tools_sees_calls_and_results_as_text() -> None:
    two = ChatMessage(
        role="assistant", content="I look.", tool_calls=(call("a", city="Köln"), call("b"))
    )
    turns = [ASKED, two, result("b", "No."), result("a", "Yes."), ASKED]

    prompt = prompts(tool_templates.PLAIN).prompt(turns, NO_TOOLS)
    assert prompt == (
        "<|im_start|>user\nRain?<|im_end|>\n"
        "<|im_start|>assistant\nI look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nNo.\n</tool_response>\n"
        "<tool_response>\nYes.\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("source", [tool_templates.WITHOUT_SYSTEM, tool_templates.DEAF_TO_SYSTEM])
def test_a_model_without_system_turns_is_told_of_tools_in_the_first_users_turn(
    source: str,
) -> None:
    prompt = prompts(source).prompt([ASKED, ASKED], USE)

    assert prompt.index("<tools>") < prompt.index("Rain?")
    assert prompt.count("<tools>\n") == 1


def test_a_model_without_template_is_told_too() -> None:
    prompt = prompts(None).prompt(HISTORY, USE)

    assert prompt.startswith("System: You can call functions.")
    assert prompt.endswith("User: <tool_response>\nYes.\n</tool_response>\nAssistant:")


@pytest.mark.parametrize(("is_parallel", "said"), [(True, "several calls"), (False, "at most")])
def test_a_model_is_told_how_many_calls_it_may_make(is_parallel: bool, said: str) -> None:
    use = ToolUse(offered=(WEATHER,), is_parallel=is_parallel)

    assert said in prompts(None).prompt([ASKED], use)


def test_a_models_template_for_tools_is_used_where_there_are_any() -> None:
    both = prompts(tool_templates.PLAIN, tool_templates.HERMES)

    assert "# Tools" in both.prompt([ASKED], USE)
    assert "<tool_response>" in both.prompt(HISTORY, NO_TOOLS)
    assert both.prompt([ASKED], NO_TOOLS) == prompts(tool_templates.PLAIN).prompt([ASKED], NO_TOOLS)


def test_without_tools_prompts_are_what_the_template_makes_of_the_messages() -> None:
    named = [SYSTEM, ChatMessage(role="user", content="Hi", name="Ada")]
    source = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    shown = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    shown[1]["name"] = "Ada"

    assert prompts(source).prompt(named, NO_TOOLS) == "".join(json.dumps(one) for one in shown)
