import pytest

from meshnet_worker.text import call_styles
from meshnet_worker.text.call_styles import CallStyle
from meshnet_worker.text.chat_template import ChatTemplate
from meshnet_worker.text.template_probe import ToolTemplate, probe_tools, takes_system_turns
from tests.worker.text import tool_templates


def probe(source: str) -> ToolTemplate | None:
    return probe_tools(ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render)


@pytest.mark.parametrize(
    ("source", "style"),
    [
        (tool_templates.HERMES, call_styles.HERMES),
        (tool_templates.LLAMA, call_styles.LLAMA),
        (tool_templates.MISTRAL, call_styles.MISTRAL),
        (tool_templates.NEWER_MISTRAL, call_styles.NEWER_MISTRAL),
        (
            tool_templates.NEWER_MISTRAL.replace("'[CALL_ID]' + call.id + ", ""),
            call_styles.NEWER_MISTRAL,
        ),
        (
            tool_templates.NEWER_MISTRAL.replace(" + '[CALL_ID]' + call.id + '[ARGS]'", ""),
            call_styles.NEWER_MISTRAL,
        ),
    ],
)
def test_a_template_shows_its_familys_style(source: str, style: CallStyle) -> None:
    assert probe(source) == ToolTemplate(style, None, arguments_are_text=False)


@pytest.mark.parametrize(
    "source",
    [
        tool_templates.PLAIN,
        "{{ messages[0].content }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}",
        tool_templates.HERMES.replace("<tool_call>", "<<call>>"),
        tool_templates.HERMES.replace("tool | tojson", "''"),
        tool_templates.HERMES.replace("{{ message.content }}\n</tool_response>", ""),
        tool_templates.HERMES.replace('{"name": "{{ call.function.name }}", "arguments": ', "x"),
        tool_templates.HERMES.replace('"name": "{{ call.function.name }}"', '"call": "x"'),
        "{{ raise_exception('no') }}",
    ],
)
def test_a_template_that_loses_something_of_tools_knows_none(source: str) -> None:
    assert probe(source) is None


def test_arguments_are_text_where_a_template_writes_them_as_they_are() -> None:
    source = tool_templates.HERMES.replace("arguments | tojson", "arguments")

    assert probe(source) == ToolTemplate(call_styles.HERMES, None, arguments_are_text=True)


def test_a_turn_of_nothing_but_calls_has_the_content_that_a_template_needs() -> None:
    source = tool_templates.HERMES.replace(
        "{% if message.content %}{{ message.content }}{% endif %}", "{{ '' + message.content }}"
    )

    assert probe(source) == ToolTemplate(call_styles.HERMES, "", arguments_are_text=False)


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        (tool_templates.PLAIN, True),
        (tool_templates.WITHOUT_SYSTEM, False),
        (tool_templates.DEAF_TO_SYSTEM, False),
    ],
)
def test_system_turns_are_taken_only_if_they_are_shown(source: str, takes: bool) -> None:
    assert takes_system_turns(ChatTemplate(source, {}).render) == takes
