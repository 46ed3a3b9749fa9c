from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from meshnet_common.openai.document import OPERATIONS, openapi_document

DOCUMENT: dict[str, Any] = openapi_document("1.2.3")


def test_it_is_an_openapi_document() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    assert DOCUMENT["info"]["version"] == "1.2.3"


def test_operations_have_names_of_their_own() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_no_name_begins_with_an_underscore_and_no_reference_leads_nowhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert not [name for name in schemas if name.startswith("_")]
    refs = set(_refs(DOCUMENT))
    known = {f"#/components/schemas/{name}" for name in schemas}
    known |= {f"#/components/responses/{name}" for name in DOCUMENT["components"]["responses"]}
    assert refs <= known


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_error_that_may_come_is_told(operation: Any) -> None:
    statuses = DOCUMENT["paths"][operation.path][operation.method]["responses"].keys()
    assert {"200", "401", "403", "404", "429", "500", "503"} <= statuses
    if operation.body is not None:
        assert {"400", "408", "413", "415", "502", "504"} <= statuses


def test_what_is_always_written_is_required_and_what_may_be_left_out_is_not() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["ErrorBody"]["required"] == ["message", "type", "param", "code"]
    assert set(schemas["ListedModel"]["required"]) == {"id", "object", "created", "owned_by"}


def test_bounds_of_requests_are_in_it() -> None:
    chat = DOCUMENT["components"]["schemas"]["ChatBody"]
    assert chat["required"] == ["model", "messages"]
    bounds = chat["properties"]["temperature"]["anyOf"][0]
    assert (bounds["minimum"], bounds["maximum"]) == (0, 2)


def _refs(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in _refs(value)]
    return [ref for value in node for ref in _refs(value)] if isinstance(node, list) else []
