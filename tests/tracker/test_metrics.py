import pytest
from prometheus_client.parser import text_string_to_metric_families

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Directive, DirectiveState
from meshnet_tracker import metrics as rules
from meshnet_tracker.metrics import Metrics
from meshnet_tracker.planning.coverage import CoverageMap
from meshnet_tracker.records import DirectiveRecord, DirectiveTally
from tests.tracker.builders import MODEL, NOW

SORT = {"kind": "LOAD_SHARD", "reason": "gap", "state": "failed"}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """What a scrape would read under this name."""
    return metrics.registry.get_sample_value(f"meshnet_tracker_{name}", labels)


def closed(seconds: float) -> DirectiveRecord:
    wire = Directive(
        id="d1",
        epoch=1,
        kind=SORT["kind"],
        model="tiny",
        quantization="bfloat16",
        start_layer=0,
        end_layer=3,
        reason=SORT["reason"],
        deadline=NOW + 600,
    )
    end = NOW + seconds
    return DirectiveRecord(WorkerId("w1"), wire, DirectiveState.FAILED, "", "", NOW, end, 0, 0)


def test_answers_are_counted_by_endpoint_and_status() -> None:
    metrics = Metrics()
    for status in (200, 200, 503):
        metrics.answered("/v1/models", status)
    assert value(metrics, "requests_total", endpoint="/v1/models", status="200") == 2
    assert value(metrics, "requests_total", endpoint="/v1/models", status="503") == 1


def test_a_heartbeat_lags_by_what_it_came_later_than_told() -> None:
    metrics = Metrics()
    for now in (NOW, NOW + 4, NOW + 11):
        metrics.heartbeat(WorkerId("w1"), 4.0, now)
    assert value(metrics, "heartbeat_lag_seconds_count") == 2
    assert value(metrics, "heartbeat_lag_seconds_sum") == 3


def test_of_heartbeats_only_so_many_workers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_HEARTBEATS_KEPT", 2)
    metrics = Metrics()
    for number, name in enumerate(("w1", "w2", "w1", "w3", "w2")):
        metrics.heartbeat(WorkerId(name), 1.0, NOW + number)
    # w2 was heard of longest ago when w3 came, so it counts as new.
    assert value(metrics, "heartbeat_lag_seconds_count") == 1


def test_what_is_closed_adds_up_and_what_is_open_is_as_it_is_now() -> None:
    metrics = Metrics()
    metrics.directives_ended([closed(20), closed(40)])
    assert value(metrics, "directives_ended_total", **SORT) == 2
    assert value(metrics, "directive_seconds_sum", **SORT) == 60
    metrics.directives_are_open([DirectiveTally("LOAD_SHARD", "gap", "failed", 3, NOW - 9)], NOW)
    assert value(metrics, "directives_open", **SORT) == 3
    assert value(metrics, "directive_oldest_seconds", **SORT) == 9
    metrics.directives_are_open([], NOW)
    assert value(metrics, "directives_open", **SORT) is None


def test_coverage_tells_what_is_missing_and_how_thin_it_is() -> None:
    metrics = Metrics()
    labels = {"model": MODEL.model, "quantization": MODEL.quantization}
    metrics.coverage_is([(MODEL, CoverageMap((2, 1, 0, 0)))])
    assert value(metrics, "coverage_missing_layers", **labels) == 2
    assert value(metrics, "coverage_thinnest_replicas", **labels) == 0
    metrics.coverage_is([])
    assert value(metrics, "coverage_missing_layers", **labels) is None


def test_a_state_without_workers_is_told_too() -> None:
    metrics = Metrics()
    metrics.workers_are({"live": 3})
    states = ("joining", "live", "leaving", "lost")
    assert [value(metrics, "workers", state=state) for state in states] == [0, 3, 0, 0]


def test_a_scrape_is_well_formed_and_tells_what_each_figure_is() -> None:
    families = list(text_string_to_metric_families(Metrics().exposition().decode()))
    assert len(families) > 10
    assert [family.name for family in families if not family.documentation] == []
