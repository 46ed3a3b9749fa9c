import asyncio
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from meshnet_common.protocol.messages import Directive, DirectiveKind, ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_process import ShardLoadError
from meshnet_worker.reconcile import DirectiveRefusedError
from meshnet_worker.text.tokenizer import TextFilesError
from meshnet_worker.weights.errors import WeightsNotFoundError
from tests.common.builders import NOW, hops, ticket
from tests.worker.builders import directive, hop_session
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.keeping import SIZE, Keeping
from tests.worker.models import LAYERS, save_model
from tests.worker.waiting import SECONDS, ending_tasks

pytestmark = pytest.mark.asyncio(loop_scope="session")

DROP = DirectiveKind.DROP_SHARD


@pytest.fixture
def keeping(shared_engine: SharedEngine, model_folders: ModelFolders) -> Keeping:
    return Keeping(shared_engine, model_folders("llama"))


async def test_a_load_makes_layers_ready_and_takes_their_bytes(keeping: Keeping) -> None:
    await keeping.obey(directive(1, 3))
    assert keeping.states() == [(ShardState.READY, 1, 3)]
    assert keeping.weight_bytes == keeping.size_of(1, 3)


async def test_a_shard_is_extended_at_either_end(keeping: Keeping) -> None:
    for start, end in ((1, 2), (2, 4), (0, 4)):
        await keeping.obey(directive(start, end))
    assert keeping.ready == ShardRange(0, LAYERS)
    assert keeping.weight_bytes == SIZE


async def test_text_is_needed_only_where_a_route_begins(keeping: Keeping) -> None:
    await keeping.obey(directive(1, 3))
    assert keeping.keeper.codecs == {}
    await keeping.obey(directive(0, 1))
    assert list(keeping.keeper.codecs) == [("tiny", "float32")]


async def test_the_text_of_a_model_goes_with_its_last_layer(keeping: Keeping) -> None:
    await keeping.obey(directive(0, 2))
    await keeping.obey(directive(1, 2, DROP))
    assert list(keeping.keeper.codecs) == [("tiny", "float32")]
    await keeping.obey(directive(0, 1, DROP))
    assert keeping.keeper.codecs == {}


async def test_a_drop_trims_a_shard_and_gives_its_bytes_back(keeping: Keeping) -> None:
    await keeping.obey(directive(0, 4))
    await keeping.obey(directive(2, 4, DROP))
    assert keeping.states() == [(ShardState.READY, 0, 2)]
    assert keeping.weight_bytes == keeping.size_of(0, 2)
    await keeping.obey(directive(0, 4, DROP))
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)
    await keeping.obey(directive(2, 4))
    assert keeping.ready == ShardRange(2, 4)


async def test_what_is_done_already_asks_nothing_of_the_engine(keeping: Keeping) -> None:
    await keeping.obey(directive(1, 3))
    await keeping.obey(directive(1, 2))
    await keeping.obey(directive(3, 4, DROP))
    assert keeping.ready == ShardRange(1, 3)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(directive(3, 4), id="a gap"),
        pytest.param(directive(0, 1, kind="POLISH_SHARD"), id="an unknown kind"),
        pytest.param(directive(2, 1), id="no range"),
        pytest.param(directive(0, 2, quantization="nf4"), id="an unknown Variant"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_and_changes_nothing(
    told: Directive, keeping: Keeping
) -> None:
    await keeping.obey(directive(1, 2))
    assert await keeping.refuse(told, DirectiveRefusedError)
    assert keeping.states() == [(ShardState.READY, 1, 2)]


async def test_a_model_that_is_not_there_is_refused(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    keeping = Keeping(shared_engine, tmp_path / "nowhere")
    await keeping.refuse(directive(1, 2), WeightsNotFoundError)
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)


async def test_weights_that_cannot_be_read_leave_nothing(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    keeping = Keeping(shared_engine, tmp_path)
    await keeping.refuse(directive(1, 2), ShardLoadError)
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)


async def test_a_first_layer_without_a_tokenizer_leaves_nothing(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    keeping = Keeping(shared_engine, save_model("llama", tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    await keeping.refuse(directive(0, 2), TextFilesError)
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)


async def test_an_extension_that_fails_leaves_what_was_there(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    keeping = Keeping(shared_engine, save_model("llama", tmp_path))
    await keeping.obey(directive(1, 2))
    (tmp_path / "model.safetensors").unlink()
    await keeping.refuse(directive(2, 4), ShardLoadError)
    assert keeping.states() == [(ShardState.READY, 1, 2)]
    assert keeping.weight_bytes == keeping.size_of(1, 2)


async def test_layers_in_use_drain_before_they_are_dropped(keeping: Keeping) -> None:
    await keeping.obey(directive(0, 4))
    session = hop_session(ticket(*hops(2, 2)), place=1)
    keeping.sessions.add(session)
    async with ending_tasks() as tasks:
        dropping = tasks.create_task(keeping.obey(directive(2, 4, DROP)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert keeping.states() == [(ShardState.READY, 0, 2), (ShardState.DRAINING, 2, 4)]
        keeping.keeper.on_freed()
        await asyncio.sleep(0)
        assert not dropping.done()
        keeping.sessions.remove(session, NOW)
        keeping.keeper.on_freed()
        await dropping
    assert keeping.states() == [(ShardState.READY, 0, 2)]


async def test_sessions_on_other_layers_delay_no_drop(keeping: Keeping) -> None:
    await keeping.obey(directive(0, 4))
    keeping.sessions.add(hop_session(ticket(*hops(2, 2)), place=0))
    await keeping.obey(directive(2, 4, DROP))
    assert keeping.ready == ShardRange(0, 2)


async def test_a_drain_that_takes_too_long_is_cut_short(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_worker.keeper.DRAIN_SECONDS", 0.01)
    await keeping.obey(directive(0, 4))
    keeping.sessions.add(hop_session(ticket(*hops(2, 2)), place=1))
    await keeping.obey(directive(2, 4, DROP))
    assert keeping.ready == ShardRange(0, 2)


async def test_directives_are_carried_out_one_after_the_other(keeping: Keeping) -> None:
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        for start, end in ((1, 2), (2, 3), (3, 4)):
            tasks.create_task(keeping.obey(directive(start, end)))
    assert keeping.ready == ShardRange(1, 4)


async def test_what_was_ready_waits_for_a_new_engine_and_is_restored(keeping: Keeping) -> None:
    await keeping.obey(directive(1, 3))
    number = [shard.number for shard in keeping.shards]
    keeping.keeper.forget_engine()
    assert keeping.states() == [(ShardState.LOADING, 1, 3)]
    assert keeping.weight_bytes == keeping.size_of(1, 3)
    await keeping.engine.drop(number[0], ShardRange(1, 3))
    await keeping.keeper.restore(keeping.engine)
    assert keeping.states() == [(ShardState.READY, 1, 3)]


async def test_what_was_only_loading_is_given_up_with_its_engine(keeping: Keeping) -> None:
    shard = keeping.shards.add(keeping.model, keeping.model.variants[0], "folder")
    keeping.keeper.forget_engine()
    assert keeping.shards.find(*shard.key) is None


async def test_a_shard_that_cannot_be_restored_is_given_up_and_ends_nothing(
    shared_engine: SharedEngine, tmp_path: Path
) -> None:
    keeping = Keeping(shared_engine, save_model("llama", tmp_path))
    await keeping.obey(directive(1, 3))
    (shard,) = keeping.shards
    keeping.keeper.forget_engine()
    await keeping.engine.drop(shard.number, ShardRange(1, 3))
    (tmp_path / "model.safetensors").unlink()
    await keeping.keeper.restore(keeping.engine)
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)


async def test_a_fault_of_ours_in_a_restoration_ends_nothing(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keeping.obey(directive(1, 3))
    (shard,) = keeping.shards
    keeping.keeper.forget_engine()
    await keeping.engine.drop(shard.number, ShardRange(1, 3))

    async def faulty(*_load: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(keeping.engine, "load", faulty)
    with capture_logs() as logs:
        await keeping.keeper.restore(keeping.engine)
    assert [entry["exc_info"] for entry in logs if entry["log_level"] == "error"] == [True]
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)


async def test_layers_of_another_size_than_the_presets_are_told_with_both_numbers(
    keeping: Keeping,
) -> None:
    with capture_logs() as logs:
        await keeping.obey(directive(1, 3))
    (warning,) = [entry for entry in logs if "preset's figure" in entry["event"]]
    assert (warning["log_level"], warning["preset_bytes"]) == ("warning", keeping.size_of(1, 3))
    assert warning["measured_bytes"] > 10 * keeping.size_of(1, 3)


async def test_layers_of_the_presets_size_are_no_news(keeping: Keeping) -> None:
    with capture_logs() as logs:
        await keeping.obey(directive(1, 2))
    measured = next(entry["measured_bytes"] for entry in logs if "measured_bytes" in entry)
    right = msgspec.structs.replace(keeping.model.variants[0], layer_bytes=(measured,) * LAYERS)
    keeping.model = msgspec.structs.replace(keeping.model, variants=(right,))
    await keeping.obey(directive(1, 2, kind=DROP))
    keeping.kv.budget_bytes = 10 * measured
    with capture_logs() as logs:
        await keeping.obey(directive(1, 2))
    assert not [entry for entry in logs if "preset's figure" in entry["event"]]
