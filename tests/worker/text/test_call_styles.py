from meshnet_worker.text.call_styles import HERMES, LLAMA, MISTRAL, NEWER_MISTRAL


def test_markers_are_special_tokens_only_where_the_tokenizer_has_them() -> None:
    ids = {"<s>": 1, "[TOOL_CALLS]": 5, "</tool_call>": 7}

    assert MISTRAL.with_special(ids).special == {"[TOOL_CALLS]": 5}
    assert HERMES.with_special(ids).special == {"</tool_call>": 7}
    assert LLAMA.with_special(ids).special == {}


def test_a_style_has_only_markers_that_are_something() -> None:
    assert all(all(style.markers) for style in (HERMES, LLAMA, MISTRAL, NEWER_MISTRAL))
