import json

import pytest

from meshnet_worker.text.call_reader import CallReader
from meshnet_worker.text.json_scanner import NotJsonError


def read(text: str) -> CallReader:
    reader = CallReader({"add"})
    for character in text:
        reader.feed(character)
    return reader


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "add", "arguments": {"a": [1, {}]}}', '{"a": [1, {}]}'),
        ('{"parameters": {"a":1}, "name": "add"}', '{"a":1}'),
        ('{"name": "add"}', "{}"),
        ('{"name": "add", "arguments": null}', "{}"),
        ('{"name": "add", "arguments": "null"}', "{}"),
        ('{"name": "add", "arguments": ""}', "{}"),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"\\u006eame": "\\u0061dd", "type": "function"}', "{}"),
    ],
)
def test_a_whole_call_has_a_name_and_an_object_of_arguments(text: str, arguments: str) -> None:
    reader = read(text)

    assert reader.is_complete
    assert (reader.name, reader.take()) == ("add", arguments)
    assert isinstance(json.loads(arguments), dict)


def test_arguments_are_taken_as_they_come() -> None:
    reader = read('{"name": "add", "arguments": {"a"')
    first = reader.take()
    for character in ": 1}}":
        reader.feed(character)

    assert (first, reader.take(), reader.take()) == ('{"a"', ": 1}", "")


def test_a_string_of_arguments_waits_for_its_end() -> None:
    reader = read('{"name": "add", "arguments": "{\\"a\\"')

    assert reader.take() == ""


def test_a_name_is_known_once_it_is_whole() -> None:
    assert read('{"name": "add"').name is None
    assert read('{"name": "add",').name == "add"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "sub",',
        '{"name": 3',
        '{"name": [',
        '{"what"',
        '{"arguments": [',
        '{"arguments": t',
        '{"arguments": {}, "parameters"',
        '{"name": "add", "name"',
        '{"arguments": {}, "arguments"',
        '{"arguments": {}}',
        '{"name": "add", "arguments": "[]"}',
        '{"name": "add", "arguments": "{"}',
    ],
)
def test_what_can_be_no_call_is_refused_at_once(text: str) -> None:
    read(text[:-1])
    with pytest.raises(NotJsonError):
        read(text)
