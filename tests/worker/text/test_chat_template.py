from datetime import datetime

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.messages import ChatMessage
from meshnet_worker.text.chat_template import ChatTemplate, plain_prompt

HELLO = ChatMessage(role="user", content="Hello <b>&'\"")


def render(source: str, *messages: ChatMessage) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages or [HELLO])


def test_a_template_sees_messages_special_tokens_and_the_generation_prompt() -> None:
    source = (
        "{{ bos_token }}{% for message in messages %}{{ message.role + ':' + message['content'] }}"
        "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
        "{% if tools is none and documents is none %}!{% endif %}"
    )

    assert render(source) == "<s>user:Hello <b>&'\"</s>>!"


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for message in messages %}\n    {% if true %}\nx\n    {% endif %}\n{% endfor %}\n"

    assert render(source) == "x\n"


def test_a_name_is_there_only_if_it_was_given() -> None:
    source = "{% for m in messages %}{{ m.name if 'name' in m else '-' }}{% endfor %}"

    assert render(source, HELLO, ChatMessage(role="user", content="", name="Ada")) == "-Ada"


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ messages[0].content | tojson }}") == '"Hello <b>&\'\\""'
    assert render("{{ {'ü': 1} | tojson(indent=2) }}") == '{\n  "ü": 1\n}'


def test_loops_may_be_left_early() -> None:
    assert (
        render("{% for i in range(9) %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}")
        == "01"
    )


def test_a_template_may_ask_for_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") in {
        str(datetime.now().astimezone().year - 1),
        str(datetime.now().astimezone().year),
    }


def test_a_template_that_refuses_the_messages_is_the_clients_fault() -> None:
    with pytest.raises(ApiError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")

    assert (caught.value.status, caught.value.body.param) == (400, "messages")


@pytest.mark.parametrize(
    "source",
    ["{{ 'a' + none }}", "{{ 1 / 0 }}", "{{ messages | sum }}"],
)
def test_a_template_that_fails_on_the_messages_refuses_them(source: str) -> None:
    with pytest.raises(ApiError) as caught:
        render(source)

    assert caught.value.status == 400


def test_tools_are_given_as_they_are_and_none_if_there_are_none() -> None:
    template = ChatTemplate("{{ tools | tojson(separators=(',', ':'), sort_keys=true) }}", {})

    assert template.render([HELLO], [{"b": 1, "a": "ü"}]) == '[{"a":"ü","b":1}]'
    assert template.render([HELLO]) == "null"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ undefined_thing.attribute }}",
    ],
)
def test_a_template_can_reach_nothing_but_its_values(source: str) -> None:
    with pytest.raises(ApiError):
        render(source)


def test_a_model_without_template_gets_one_line_a_turn() -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]

    assert plain_prompt(turns) == (
        "System: Be brief.\nUser: Hi\nAssistant: Hello\nUser: Bye\nAssistant:"
    )


@pytest.mark.parametrize("expression", ["'a' * 10**12", "9 ** (9 ** 9)", "'a' | center(10**12)"])
@pytest.mark.parametrize(
    "block", ["{{{{ {} }}}}", "{{% set x = {} %}}", "{{% if {} %}}{{% endif %}}"]
)
def test_loading_a_template_computes_nothing(expression: str, block: str) -> None:
    ChatTemplate(block.format(expression), {})


def test_constants_are_shown_as_any_other_value() -> None:
    assert render("a{{ 'b' }}{{ 1 + 2 }}{{ 'x' | upper }}c") == "ab3Xc"
