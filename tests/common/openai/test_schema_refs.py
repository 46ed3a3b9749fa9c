from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError, invalid_request
from meshnet_common.openai.schema_refs import Place, Schema, Targets, inner_schemas


def refuse(place: Place, what: str) -> ApiError:
    return invalid_request(f"{'/'.join(place)} {what}")


def targets_of(root: Schema, *references: Any) -> Targets:
    targets = Targets()
    pending = [root]
    while pending:
        schema = pending.pop()
        targets.add(schema)
        pending += inner_schemas(schema)
    for reference in references:
        targets.note(reference, ("$ref",), refuse)
    targets.check(root, refuse)
    return targets


@pytest.mark.parametrize(
    ("reference", "keyword"),
    [
        ("#/$defs/a", "a"),
        ("#/$defs/a~1b", "a/b"),
        ("#/$defs/a~0b", "a~b"),
        ("#/$defs/a%20b", "a b"),
        ("#/$defs/", ""),
    ],
)
def test_a_reference_leads_to_a_schema_by_its_name(reference: str, keyword: str) -> None:
    wanted: Schema = {"type": "null"}
    root: Schema = {"$defs": {keyword: wanted, "other": {}}}
    assert targets_of(root, reference).of({"$ref": reference}) is wanted


def test_a_reference_may_lead_to_the_whole_and_into_lists() -> None:
    root: Schema = {"anyOf": [{"type": "null"}, {"items": {"type": "string"}}]}
    targets = targets_of(root, "#", "#/anyOf/1/items")
    assert targets.of({"$ref": "#"}) is root
    assert targets.of({"$ref": "#/anyOf/1/items"}) == {"type": "string"}
    assert targets.of({"type": "null"}) is None


@pytest.mark.parametrize(
    "reference",
    [
        1,
        None,
        "",
        "a",
        "#a",
        "http://example.com/schema",
        "http://example.com/schema#/$defs/a",
        "file:///etc/passwd",
        "other.json#/$defs/a",
        "#/$defs/missing",
        "#/$defs",
        "#/$defs/yes",
        "#/enum/0",
        "#/anyOf/01",
        "#/anyOf/-1",
        "#/anyOf/7",
        "#/anyOf/99999999999999999999",
        "#/type/a",
        "#/$defs/a/type",
    ],
)
def test_a_reference_that_leads_to_no_schema_here_is_refused(reference: Any) -> None:
    root: Schema = {
        "type": "object",
        "enum": [{"type": "null"}],
        "anyOf": [{}],
        "$defs": {"a": {"type": "null"}, "yes": True},
    }
    with pytest.raises(ApiError, match=r"must|lead"):
        targets_of(root, reference)


def test_the_schemas_within_one_are_those_under_its_keywords() -> None:
    names = ["a", "b", "c", "d", "e", "f", "g", "h"]
    a, b, c, d, e, f, g, h = ({"title": name} for name in names)
    schema: Schema = {
        "items": a,
        "additionalProperties": False,
        "anyOf": [b, True],
        "allOf": [c],
        "oneOf": [d],
        "prefixItems": [e],
        "properties": {"x": f, "enum": g},
        "$defs": {"y": h},
        "enum": [{"title": "not a schema"}],
    }
    found = sorted(inner["title"] for inner in inner_schemas(schema))
    assert found == names
