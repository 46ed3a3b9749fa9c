from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Capabilities, Directive, DirectiveState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.diagnosis import Facts, FileFacts, Finding, diagnose
from meshnet_tracker.overview import LayerRun, VariantCoverage
from meshnet_tracker.planning.snapshot import Pin
from meshnet_tracker.records import AliasRecord, DirectiveRecord, WorkerRecord
from tests.tracker.builders import MODEL, NOW, registration

WELL = Facts(now=NOW, latency_seconds=0.01, skew_seconds=0.1, plans=True)
ROOMY = FileFacts({"t.sqlite3": 0o600}, free_bytes=1 << 40, log_bytes=4096)


def worker(worker_id: str = "w1", **fields: Any) -> WorkerRecord:
    known = WorkerRecord(
        worker_id=WorkerId(worker_id),
        url=f"http://{worker_id}",
        version="0.1.0",
        fingerprint="",
        capabilities=capabilities(),
        registered_at=NOW - 600,
        seen_at=NOW - 1,
        is_heard=True,
        is_lost=False,
        is_leaving=False,
        sessions=0,
        kv_bytes_free=0,
        speeds_of="",
        failures=0,
        cooling_until=0.0,
        shards=(),
        directives=(),
    )
    return replace(known, **fields)


def capabilities() -> Capabilities:
    return registration().capabilities


def coverage(name: str = "tiny", *gaps: tuple[int, int]) -> VariantCoverage:
    return VariantCoverage(
        model=name,
        quantization="bfloat16",
        own_name=name,
        names=(name,),
        is_canary=False,
        layer_count=6,
        is_servable=not gaps,
        thinnest_replicas=0 if gaps else 1,
        missing_layers=sum(end - start for start, end in gaps),
        gaps=tuple(LayerRun(*gap) for gap in gaps),
        coverage=(),
    )


def order(state: DirectiveState, start: int, end: int, detail: str = "") -> DirectiveRecord:
    wire = Directive(
        id="d1",
        epoch=1,
        kind="LOAD_SHARD",
        model=MODEL.model,
        quantization=MODEL.quantization,
        start_layer=start,
        end_layer=end,
        reason="gap",
        deadline=NOW,
    )
    return DirectiveRecord(WorkerId("w1"), wire, state, detail, "", NOW - 60, NOW, 0, 0)


def only(facts: Facts) -> Finding:
    (finding,) = diagnose(facts)
    return finding


def test_a_mesh_that_is_well_has_no_findings() -> None:
    facts = replace(
        WELL,
        workers=(worker("w1"), worker("w2")),
        coverage=(coverage(),),
        files=ROOMY,
        pins=(Pin(WorkerId("w1"), MODEL, ShardRange(0, 3)),),
        aliases=(AliasRecord("chat", "tiny", None, NOW),),
        own_names=frozenset({"tiny"}),
        opened=(order(DirectiveState.LOADING, 0, 6),),
        closed=(order(DirectiveState.READY, 0, 6),),
    )
    assert diagnose(facts) == ()


PROBLEMS: Mapping[str, tuple[Facts, str]] = {
    "slow": (replace(WELL, latency_seconds=2.0), "took 2.00 s"),
    "skew": (replace(WELL, skew_seconds=-7.0), "-7.0 s off"),
    "nobody plans": (replace(WELL, plans=False), "No Tracker plans"),
    "failing passes": (replace(WELL, failing_since=NOW - 90), "succeeded for 90.0 s"),
    "readable": (replace(WELL, files=replace(ROOMY, modes={"t": 0o640})), "mode 0640"),
    "full disk": (replace(WELL, files=replace(ROOMY, free_bytes=1 << 20)), "Only 1.0 MiB"),
    "ghost": (replace(WELL, workers=(worker(is_heard=False),)), "never heard of"),
    "one url": (
        replace(WELL, workers=(worker("w1", url="http://x"), worker("w2", url="http://x"))),
        "w1, w2",
    ),
    "gap": (replace(WELL, coverage=(coverage("tiny", (2, 4)),)), "layers [2, 4) of tiny."),
    "alias of nothing": (
        replace(WELL, aliases=(AliasRecord("chat", "gone", None, NOW),)),
        "chat stands for gone",
    ),
    "alias of a gap": (
        replace(
            WELL,
            aliases=(AliasRecord("chat", "next", "tiny", NOW),),
            coverage=(coverage(),),
            own_names=frozenset({"tiny", "next"}),
        ),
        "of which layers are missing",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_told_with_its_reason_and_what_to_do(name: str) -> None:
    facts, said = PROBLEMS[name]
    finding = only(facts)
    assert (finding.is_problem, said in finding.what) == (True, True)
    assert finding.why
    assert finding.advice


NOTES: Mapping[str, tuple[Facts, str]] = {
    "lost": (replace(WELL, workers=(worker(is_lost=True, seen_at=NOW - 7200),)), "is lost"),
    "cooling": (replace(WELL, workers=(worker(cooling_until=NOW + 90),)), "for 90.0 s"),
    "long log": (replace(WELL, files=replace(ROOMY, log_bytes=1 << 31)), "2.0 GiB"),
    "absent": (replace(WELL, pins=(Pin(WorkerId("w9"), MODEL, ShardRange(0, 3)),)), "absent"),
    "failed order": (
        replace(WELL, closed=(order(DirectiveState.FAILED, 0, 3, "the disk is full"),)),
        "1 LOAD_SHARD of the worker w1",
    ),
}


@pytest.mark.parametrize("name", NOTES)
def test_a_note_is_no_problem(name: str) -> None:
    facts, said = NOTES[name]
    finding = only(facts)
    assert (finding.is_problem, said in finding.what) == (False, True)


def test_a_gap_that_is_being_loaded_needs_patience_and_a_failed_one_is_critical() -> None:
    gap = replace(WELL, coverage=(coverage("tiny", (2, 4)),))
    loading = only(replace(gap, opened=(order(DirectiveState.LOADING, 2, 4),)))
    assert loading.advice == "Wait for the load."
    expired = replace(gap, closed=(order(DirectiveState.EXPIRED, 0, 4, "late"),))
    first, second = diagnose(expired)
    assert "The gap is critical" in first.what
    assert "late" in second.why


def test_a_load_of_other_layers_makes_no_gap_critical() -> None:
    facts = replace(
        WELL,
        coverage=(coverage("tiny", (2, 4)),),
        closed=(order(DirectiveState.FAILED, 4, 6),),
    )
    assert not any("critical" in finding.what for finding in diagnose(facts))


def test_problems_come_before_notes() -> None:
    facts = replace(WELL, plans=False, workers=(worker(is_lost=True),))
    assert [finding.is_problem for finding in diagnose(facts)] == [True, False]


def test_equal_ends_of_one_worker_are_counted_together() -> None:
    ends = tuple(order(DirectiveState.FAILED, 0, 3, "no room") for _ in range(3))
    assert only(replace(WELL, closed=ends)).what.startswith("3 LOAD_SHARD")
