import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from demo.model import ensure_model
from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.tools import FunctionTool, ToolUse
from meshnet_worker.text import call_styles
from meshnet_worker.text.tokenizer import TextCodec, TextFilesError
from tests.worker.text import tool_templates
from tests.worker.text.small_tokenizers import BEGIN, END, byte_level, model_folder, sentencepiece

CASES_FILE = Path(__file__).parents[2] / "data" / "smollm2_greedy_float32.json"
CASES: list[dict[str, Any]] = json.loads(CASES_FILE.read_text())
HELLO = [ChatMessage(role="user", content="the waves")]


@pytest.fixture(scope="module")
def smollm2() -> TextCodec:
    return TextCodec.load(ensure_model())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_real_models_prompts_are_those_of_transformers(
    smollm2: TextCodec, case: dict[str, Any]
) -> None:
    ids = smollm2.prompt_ids([ChatMessage(**message) for message in case["messages"]])

    assert len(ids) == case["prompt_tokens"]
    assert ids[: len(case["prompt_ids_head"])] == case["prompt_ids_head"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_real_models_answers_are_those_of_transformers(
    smollm2: TextCodec, case: dict[str, Any]
) -> None:
    detokenizer = smollm2.detokenizer()
    streamed = [detokenizer.push(token_id) for token_id in case["token_ids"]]

    assert smollm2.text_of(case["token_ids"]) == case["text"]
    assert "".join(streamed) + detokenizer.finish() == case["text"]


async def test_other_threads_run_while_a_long_text_is_read(smollm2: TextCodec) -> None:
    turns = 0
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(asyncio.to_thread(smollm2.text_ids, "a" * 200_000))
        while not reading.done():
            await asyncio.sleep(0.001)
            turns += 1
    assert turns > 10


def test_the_real_model_ends_its_turn_with_its_own_token(smollm2: TextCodec) -> None:
    assert smollm2.eos_ids == {2}


def id_of(token: str) -> int:
    token_id = byte_level().token_to_id(token)
    assert token_id is not None
    return token_id


@pytest.mark.parametrize(
    ("files", "eos_ids"),
    [
        ({"generation_config": {"eos_token_id": [3, 4]}, "config": {"eos_token_id": 5}}, {3, 4}),
        ({"config": {"eos_token_id": 5}}, {5}),
        ({"config": {"eos_token_id": None}}, set()),
        ({"tokenizer_config": {"eos_token": END}}, {id_of(END)}),
        ({"tokenizer_config": {"eos_token": {"content": END}}, "config": {"eos_token_id": 5}},
         {5, id_of(END)}),
        ({"tokenizer_config": {"eos_token": "unheard of"}}, set()),
    ],
)  # fmt: skip
def test_every_token_that_a_models_files_name_ends_an_answer(
    tmp_path: Path, files: dict[str, Any], eos_ids: set[int]
) -> None:
    assert TextCodec.load(model_folder(tmp_path, byte_level(), **files)).eos_ids == eos_ids


def test_a_template_beside_the_tokenizer_comes_first(tmp_path: Path) -> None:
    folder = model_folder(
        tmp_path, byte_level(), tokenizer_config={"chat_template": "{{ raise_exception('') }}"}
    )
    (folder / "chat_template.jinja").write_text(f"{BEGIN}{{{{ messages[0].content }}}}")

    ids = TextCodec.load(folder).prompt_ids(HELLO)
    assert ids == byte_level().encode(f"{BEGIN}the waves").ids


@pytest.mark.parametrize(
    "stated",
    [
        "{{ bos_token }}{{ messages[0].content }}",
        [
            {"name": "tool_use", "template": "{{ raise_exception('') }}"},
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
        ],
    ],
)
def test_a_template_inside_the_configuration_is_found(tmp_path: Path, stated: object) -> None:
    config = {"chat_template": stated, "bos_token": BEGIN}
    codec = TextCodec.load(model_folder(tmp_path, byte_level(), tokenizer_config=config))

    assert codec.prompt_ids(HELLO)[0] == id_of(BEGIN)


def test_a_models_template_for_tools_is_for_tools_only(tmp_path: Path) -> None:
    stated = [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": tool_templates.HERMES},
    ]
    config = {"chat_template": stated}
    codec = TextCodec.load(model_folder(tmp_path, byte_level(), tokenizer_config=config))
    use = ToolUse(offered=(FunctionTool(name="look", parameters={}),))

    assert codec.text_of(codec.prompt_ids(HELLO)) == "the waves"
    assert "# Tools" in codec.text_of(codec.prompt_ids(HELLO, use))


def test_calls_are_written_in_the_style_of_the_template_with_the_tokenizers_markers(
    tmp_path: Path,
) -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens(["[TOOL_CALLS]"])
    names = {"bos_token": BEGIN, "eos_token": END}
    config = {"chat_template": tool_templates.MISTRAL, **names}
    folder = model_folder(tmp_path, tokenizer, tokenizer_config=config)

    style = TextCodec.load(folder).call_style
    assert style == call_styles.MISTRAL.with_special(
        {"[TOOL_CALLS]": tokenizer.token_to_id("[TOOL_CALLS]") or 0}
    )
    assert style.special


def test_the_real_model_knows_no_tools_and_is_told_how_to_call(smollm2: TextCodec) -> None:
    use = ToolUse(offered=(FunctionTool(name="look", parameters={}),))

    assert smollm2.call_style == call_styles.HERMES
    assert "<tools>" in smollm2.text_of(smollm2.prompt_ids(HELLO, use))


def test_a_model_without_template_gets_the_plain_prompt(tmp_path: Path) -> None:
    codec = TextCodec.load(model_folder(tmp_path, byte_level()))

    assert codec.text_of(codec.prompt_ids(HELLO)) == "User: the waves\nAssistant:"


def test_truncation_and_padding_of_the_file_do_not_apply(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(sentencepiece().to_str())
    plain = tokenizer.encode("User: the waves\nAssistant:").ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=400)

    assert TextCodec.load(model_folder(tmp_path, tokenizer)).prompt_ids(HELLO) == plain


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "{"),
        ("generation_config.json", "[]"),
        ("chat_template.jinja", "{% for %}"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    folder = model_folder(tmp_path, byte_level())
    (folder / name).write_text(content)

    with pytest.raises(TextFilesError, match=name if name.endswith("json") else "template"):
        TextCodec.load(folder)


PANICKING = {
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
}
PANICKING_IN_USE = {
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    },
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", json.dumps(PANICKING).encode()),
        ("tokenizer.json", json.dumps(PANICKING_IN_USE).encode()),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b"[" * 100_000),
        ("tokenizer_config.json", b'{"eos_token": "\\ud800"}'),
        ("tokenizer_config.json", json.dumps({"chat_template": "{{" + "(" * 5000}).encode()),
        ("generation_config.json", b'{"eos_token_id": [[1]]}'),
        ("config.json", b'{"eos_token_id": {}}'),
        ("chat_template.jinja", b"\xff"),
        ("chat_template.jinja", b"{{ " + b"-" * 100_000 + b"1 }}"),
        ("chat_template.jinja", b"{{ x.y | unheard_of }}"),
        ("chat_template.jinja", b"{% include 'x' %}" * 3 + b"{% break %}"),
    ],
)
def test_a_hostile_file_fails_its_load_and_nothing_else(
    tmp_path: Path, name: str, content: bytes
) -> None:
    folder = model_folder(tmp_path, byte_level())
    (folder / name).write_bytes(content)

    with pytest.raises(TextFilesError) as caught:
        TextCodec.load(folder)
    assert len(str(caught.value)) < 500


def test_a_tokenizer_that_panics_at_a_prompt_is_a_clear_error(tmp_path: Path) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "CAAAAP////8AAAAA"}
    content = json.dumps({**PANICKING, "normalizer": normalizer})
    (tmp_path / "tokenizer.json").write_text(content)
    codec = TextCodec.load(tmp_path)

    with pytest.raises(TextFilesError, match=r"tokenizer\.json: PanicException"):
        codec.prompt_ids(HELLO)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_folder_in_a_files_place_is_named(tmp_path: Path, name: str) -> None:
    folder = model_folder(tmp_path, byte_level())
    (folder / name).mkdir()
    with pytest.raises(TextFilesError, match=name):
        TextCodec.load(folder)


@pytest.mark.parametrize(
    "entry", [{"template": "x"}, {"name": "default"}, {"name": "default", "template": 1}, "x", None]
)
def test_a_template_without_name_or_text_is_passed_over(tmp_path: Path, entry: object) -> None:
    right = {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}
    config = {"chat_template": [entry, right], "bos_token": BEGIN}
    codec = TextCodec.load(model_folder(tmp_path, byte_level(), tokenizer_config=config))

    assert codec.prompt_ids(HELLO)[0] == id_of(BEGIN)


def test_a_missing_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TextFilesError, match=r"tokenizer\.json"):
        TextCodec.load(tmp_path)


def test_text_needs_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, meshnet_worker.text.tokenizer, meshnet_worker.text.answer\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )

    assert subprocess.run((sys.executable, "-c", program), check=False).returncode == 0
