from typing import Any

import msgspec
import pytest

from meshnet_common.protocol.messages import (
    Capabilities,
    CoverageRow,
    Directive,
    DirectiveKind,
    DirectiveList,
    DirectiveReason,
    DirectiveReport,
    DirectiveState,
    Heartbeat,
    HeartbeatReply,
    PresetAnswer,
    Registered,
    RegisterWorker,
    RouteAnswer,
    ShardReport,
    ShardState,
)
from meshnet_common.shard_range import ShardRange
from tests.common.builders import NOW, hop, hops, preset

DIRECTIVE = Directive(
    id="d1",
    epoch=4,
    kind=DirectiveKind.LOAD_SHARD,
    model="tiny",
    start_layer=0,
    end_layer=4,
    quantization="float32",
    reason=DirectiveReason.GAP,
    deadline=NOW,
)
REPORT = ShardReport(
    model="tiny",
    quantization="float32",
    start_layer=1,
    end_layer=3,
    state=ShardState.LOADING,
    is_tail=False,
    bytes_done=5,
    bytes_total=9,
)
MESSAGES: list[msgspec.Struct] = [
    RegisterWorker(
        worker_id="w1",
        url="http://127.0.0.1:7000",
        version="0.1.0",
        capabilities=Capabilities(
            vram_bytes=1 << 40,
            quantizations=("float32",),
            benchmark_tokens_per_sec=1.5,
            benchmark_model="layer",
            device="CPU",
            starts_at_zero=True,
        ),
    ),
    Registered(
        worker_id="w1",
        token="secret",
        heartbeat_seconds=4.0,
        lost_after_seconds=12.0,
        directive_wait_seconds=25.0,
    ),
    Heartbeat(shards=(REPORT,), sessions=1, kv_bytes_free=7, directive_epoch=4),
    HeartbeatReply(now=NOW),
    DirectiveList(directives=(DIRECTIVE,)),
    DirectiveReport(state=DirectiveState.FAILED, reason="why", bytes_done=1, bytes_total=2),
    PresetAnswer(preset=preset()),
    RouteAnswer(ticket="t", hops=hops(2, 2)),
    CoverageRow(start_layer=0, end_layer=4, worker_count=0),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_json(message: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=type(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_fields_that_a_later_release_adds_are_passed_over(message: msgspec.Struct) -> None:
    newer: dict[str, Any] = {**msgspec.to_builtins(message), "colour": "blue"}
    assert msgspec.json.decode(msgspec.json.encode(newer), type=type(message)) == message


def test_a_kind_of_directive_that_is_unknown_is_still_read() -> None:
    newer = {**msgspec.to_builtins(DIRECTIVE), "kind": "POLISH_SHARD", "reason": "shine"}
    assert msgspec.convert(newer, Directive).kind == "POLISH_SHARD"


def test_a_state_that_is_unknown_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"state": "polished"}', type=DirectiveReport)


def test_words_travel_as_themselves() -> None:
    assert msgspec.to_builtins(DIRECTIVE)["kind"] == "LOAD_SHARD"
    assert msgspec.to_builtins(REPORT)["state"] == "loading"


def test_reports_and_hops_name_their_range() -> None:
    assert REPORT.shard_range == ShardRange(1, 3)
    assert hop("w1", 2, 4).shard_range == ShardRange(2, 4)
