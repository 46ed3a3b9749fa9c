import json

from openai.types import Model

from meshnet_common.openai.responses import ListedModel, counted_tokens, model_list, one_model


def test_the_model_list_says_no_more_than_is_known() -> None:
    body = model_list(
        [ListedModel(id="a", created=1), ListedModel(id="b", created=2, max_model_len=4)]
    )

    assert json.loads(body) == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 1, "owned_by": "meshnet"},
            {
                "id": "b",
                "object": "model",
                "created": 2,
                "owned_by": "meshnet",
                "max_model_len": 4,
            },
        ],
    }


def test_one_model_carries_our_extension() -> None:
    body = one_model(ListedModel(id="a", created=1, meshnet={"coverage": [[0, 30, 1]]}))

    assert Model.model_validate_json(body).id == "a"
    assert json.loads(body)["meshnet"] == {"coverage": [[0, 30, 1]]}


def test_a_count_has_openais_shape() -> None:
    assert json.loads(counted_tokens(7)) == {
        "object": "response.input_tokens",
        "input_tokens": 7,
    }
