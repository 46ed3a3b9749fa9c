import pytest

from bench.placement.instances import NAMES, POLICY, load, snapshot
from bench.placement.planner import plan_from_nothing
from bench.placement.simulator import simulate
from bench.placement.small import placements, small_instance
from meshnet_tracker.planning.capacity import usable_bytes
from tests.bench.placement.meshes import instance, placed

PAIR = instance(2, {"a": (100.0, 100.0), "b": (100.0, 100.0)})


@pytest.mark.parametrize("name", NAMES)
def test_a_device_fits_as_many_layers_as_its_table_is_long(name: str) -> None:
    published = load(name)
    for node in published.nodes:
        usable = usable_bytes(node.device.memory_bytes, POLICY)
        assert usable // published.layer_bytes == len(node.device.rates)


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_reports_its_layer_tokens_for_every_count_of_layers(name: str) -> None:
    published = load(name)
    for worker, node in zip(snapshot(published).workers, published.nodes, strict=True):
        assert worker.layer_rates[0] == node.device.rates[0]
        assert worker.layer_rates[-1] == len(node.device.rates) * node.device.rates[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_reports_how_fast_a_single_token_and_a_prompt_are(name: str) -> None:
    published = load(name)
    for worker, node in zip(snapshot(published).workers, published.nodes, strict=True):
        assert worker.speed == 1 / node.device.decode_seconds[1]
        assert worker.prefill_speed == 512 / node.device.prompt_seconds[512]


def test_the_same_seed_gives_the_same_outcome_and_another_one_does_not() -> None:
    runs = placed(a=(0, 1), b=(1, 2))
    assert simulate(PAIR, runs, 3, seconds=20) == simulate(PAIR, runs, 3, seconds=20)
    assert simulate(PAIR, runs, 3, seconds=20) != simulate(PAIR, runs, 4, seconds=20)


def test_requests_in_flight_are_tokens_times_latency_and_prompts() -> None:
    """Little's law: who is in flight decodes or is in its prompt, nobody is lost or made."""
    outcome = simulate(PAIR, placed(a=(0, 1), b=(1, 2)), seconds=60)
    decoding = outcome.tokens_per_second * outcome.latency_seconds
    assert 0.5 * outcome.requests_in_flight < decoding <= outcome.requests_in_flight


def test_no_more_requests_are_in_flight_than_have_room() -> None:
    # Four Layers of memory, one of weights: 3 MB, and a request of 60 tokens takes 60 kB.
    tight = instance(2, {"a": (100.0,), "b": (100.0,)}, memory_layers=4)
    roomy = instance(2, {"a": (100.0,), "b": (100.0,)}, memory_layers=8)
    runs = placed(a=(0, 1), b=(1, 2))
    few, many = simulate(tight, runs, seconds=20), simulate(roomy, runs, seconds=20)
    assert few.requests_in_flight <= 3_000_000 / (1000 * 15)
    assert few.requests_in_flight < many.requests_in_flight


def test_a_token_takes_at_least_its_steps_and_its_links() -> None:
    outcome = simulate(PAIR, placed(a=(0, 1), b=(1, 2)), seconds=20)
    assert outcome.latency_seconds >= 2 * 0.1 + 3 * 0.001
    assert outcome.hops == 2


def test_a_gap_serves_nobody() -> None:
    outcome = simulate(PAIR, placed(a=(0, 1)), seconds=20)
    assert outcome.tokens_per_second == 0.0


def test_a_second_copy_gives_more() -> None:
    pair = placed(a=(0, 1), b=(1, 2))
    four = instance(2, dict.fromkeys("abcd", (100.0, 100.0)))
    one = simulate(four, pair, seconds=20).tokens_per_second
    two = simulate(four, pair | placed(c=(0, 1), d=(1, 2)), seconds=20).tokens_per_second
    assert two > 1.5 * one


def test_all_placements_of_a_small_instance_cover_it_and_none_is_missing() -> None:
    two = instance(2, {"a": (1.0, 1.0), "b": (2.0,)})
    runs = {tuple(sorted((w, r.start, r.end) for w, r in each.items())) for each in placements(two)}
    assert runs == {
        (("a", 0, 2),),
        (("a", 0, 2), ("b", 0, 1)),
        (("a", 0, 2), ("b", 1, 2)),
        (("a", 0, 1), ("b", 1, 2)),
        (("a", 1, 2), ("b", 0, 1)),
    }


def test_the_planner_covers_a_small_instance() -> None:
    drawn = small_instance(3)
    planned = plan_from_nothing(drawn).placement
    assert planned in list(placements(drawn)) or simulate(drawn, planned, seconds=5).hops > 0
