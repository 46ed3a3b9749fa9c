from meshnet_worker.text.call_styles import HERMES, LLAMA, MISTRAL


def test_markers_are_special_tokens_only_where_the_tokenizer_has_them() -> None:
    assert MISTRAL.with_special(["<s>", "[TOOL_CALLS]"]).special == {"[TOOL_CALLS]"}
    assert HERMES.with_special(["</tool_call>", "[TOOL_CALLS]"]).special == {"</tool_call>"}
    assert LLAMA.with_special([]).special == frozenset()


def test_a_style_has_only_markers_that_are_something() -> None:
    assert all(all(style.markers) for style in (HERMES, LLAMA, MISTRAL))
