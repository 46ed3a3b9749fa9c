import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.protocol.messages import (
    Capabilities,
    DirectiveReport,
    DirectiveState,
    Heartbeat,
    RegisterWorker,
    RoundTrip,
)
from meshnet_tracker.worker_rules import check_heartbeat, check_registration, check_report
from tests.tracker.builders import heartbeat, registration, shard

SPEEDS = (
    "decode_tokens_per_sec_per_layer",
    "prefill_tokens_per_sec_per_layer",
    "memory_bytes_per_sec",
    "link_bytes_per_sec",
)


def offering(**changes: object) -> RegisterWorker:
    capabilities = msgspec.structs.replace(registration().capabilities, **changes)
    return msgspec.structs.replace(registration(), capabilities=capabilities)


def test_a_usual_registration_and_heartbeat_are_accepted() -> None:
    check_registration(registration())
    check_heartbeat(heartbeat(shard(0, 1), shard(3, 6)))


@pytest.mark.parametrize(
    "changes",
    [
        {"vram_bytes": 0},
        {"vram_bytes": 2**63},
        {"quantizations": ()},
        {"quantizations": ("x" * 33,)},
        {"benchmark_tokens_per_sec": -1.0},
        {"device": "d" * 201},
        {"region": "r" * 65},
    ],
)
def test_capabilities_out_of_bounds_name_their_field(changes: dict[str, object]) -> None:
    with pytest.raises(ApiError) as caught:
        check_registration(offering(**changes))
    (field,) = changes
    assert caught.value.body.param == f"capabilities.{field}"


def test_every_field_of_the_capabilities_is_looked_at() -> None:
    bounded = {"vram_bytes", "quantizations", "benchmark_tokens_per_sec", "device", "region"}
    checked = {*bounded, *SPEEDS}
    unchecked = {"starts_at_zero"}
    assert set(Capabilities.__struct_fields__) - checked - unchecked == {"benchmark_model"}


TEXTS_OFFERED = ("device", "region", "benchmark_model")
TEXTS_REGISTERED = ("url", "version", "fingerprint", "worker_id")
TEXTS_OF_SHARDS = ("model", "quantization")


@pytest.mark.parametrize("field", [*TEXTS_OFFERED, *TEXTS_REGISTERED])
def test_no_text_that_postgresql_refuses_is_registered(field: str) -> None:
    text = "http://a\0b" if field == "url" else "a\0b"
    change = {field: text}
    said = (
        offering(**change)
        if field in TEXTS_OFFERED
        else msgspec.structs.replace(registration(), **change)
    )
    with pytest.raises(ApiError, match=field):
        check_registration(said)


def test_no_text_that_postgresql_refuses_is_in_a_heartbeat_or_report() -> None:
    usual = heartbeat(shard(0, 1))
    said = [
        msgspec.structs.replace(usual, speeds_of="a\0b"),
        msgspec.structs.replace(usual, round_trips=(RoundTrip(worker_id="a\0b", seconds=0.1),)),
        *(
            msgspec.structs.replace(
                usual, shards=(msgspec.structs.replace(usual.shards[0], **{field: "a\0b"}),)
            )
            for field in TEXTS_OF_SHARDS
        ),
    ]
    for each in said:
        with pytest.raises(ApiError):
            check_heartbeat(each)
    with pytest.raises(ApiError, match="reason"):
        check_report(DirectiveReport(state=DirectiveState.FAILED, reason="a\0b"))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1.7e308, 2e15])
@pytest.mark.parametrize("field", SPEEDS)
def test_a_speed_is_not_negative_and_has_an_end(field: str, value: float) -> None:
    with pytest.raises(ApiError, match=field):
        check_registration(offering(**{field: value}))
    if field in Heartbeat.__struct_fields__:
        with pytest.raises(ApiError, match=field):
            check_heartbeat(msgspec.structs.replace(heartbeat(), **{field: value}))


def test_the_name_of_a_measured_model_is_short() -> None:
    with pytest.raises(ApiError, match="speeds_of"):
        check_heartbeat(msgspec.structs.replace(heartbeat(), speeds_of="x" * 201))


@pytest.mark.parametrize("url", ["", "host:1", "file:///x", "http://", "http://a b", "http://h/x"])
def test_only_plain_http_addresses_are_taken(url: str) -> None:
    with pytest.raises(ApiError):
        check_registration(msgspec.structs.replace(registration(), url=url))


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 2), (3, 1), (0, 2_000_000)])
def test_an_impossible_shard_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(ApiError):
        check_heartbeat(heartbeat(shard(start, end)))


def test_endless_lists_and_numbers_are_refused() -> None:
    with pytest.raises(ApiError):
        check_heartbeat(heartbeat(*[shard(0, 1)] * 1001))
    with pytest.raises(ApiError):
        check_heartbeat(heartbeat(sessions=2**40))
    with pytest.raises(ApiError):
        check_report(DirectiveReport(state=DirectiveState.LOADING, bytes_done=2**64))
