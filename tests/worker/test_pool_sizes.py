import pytest

from meshnet_common.protocol.messages import DirectiveKind, ShardState
from meshnet_worker.reconcile import DirectiveRefusedError
from tests.worker.builders import directive, kv_request
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.keeping import SIZE, Keeping

pytestmark = pytest.mark.asyncio(loop_scope="session")

DROP = DirectiveKind.DROP_SHARD


@pytest.fixture
def keeping(shared_engine: SharedEngine, model_folders: ModelFolders) -> Keeping:
    return Keeping(shared_engine, model_folders("llama"))


async def test_more_than_is_lent_is_refused_with_the_numbers(
    shared_engine: SharedEngine, model_folders: ModelFolders
) -> None:
    keeping = Keeping(shared_engine, model_folders("llama"), budget_bytes=SIZE - 1)
    reason = await keeping.refuse(directive(0, 4), DirectiveRefusedError)
    assert f"needs {SIZE} bytes" in reason
    assert f"{SIZE - 1} are lent" in reason
    assert (keeping.states(), keeping.weight_bytes) == ([], 0)
    await keeping.obey(directive(0, 3))
    await keeping.refuse(directive(3, 4), DirectiveRefusedError)
    assert keeping.states() == [(ShardState.READY, 0, 3)]
    assert keeping.weight_bytes == keeping.size_of(0, 3)


async def test_a_load_leaves_the_kv_of_open_sessions_alone(
    shared_engine: SharedEngine, model_folders: ModelFolders
) -> None:
    keeping = Keeping(shared_engine, model_folders("llama"), budget_bytes=SIZE)
    await keeping.obey(directive(0, 3))
    (shard,) = keeping.shards
    keeping.kv.reserve(kv_request(shard=shard.number, layers=(0, 3)))
    await keeping.refuse(directive(3, 4), DirectiveRefusedError)
    keeping.kv.release(1)
    await keeping.obey(directive(3, 4))
    assert keeping.states() == [(ShardState.READY, 0, 4)]


async def test_pools_are_cut_from_what_weights_leave(keeping: Keeping) -> None:
    await keeping.obey(directive(0, 1))
    (shard,) = keeping.shards
    pool = keeping.kv.pools[shard.number]
    sizes = [pool.blocks]
    await keeping.obey(directive(1, 4))
    sizes.append(pool.blocks)
    await keeping.obey(directive(1, 4, DROP))
    sizes.append(pool.blocks)
    block_bytes = keeping.model.variants[0].kv_bytes_per_token_per_layer
    left = [10 * SIZE - keeping.size_of(0, end) for end in (1, 4)]
    small, large = left[1] // (4 * block_bytes), left[0] // block_bytes
    assert sizes == [large, small, large]


async def test_pools_are_evened_out_as_sessions_end(keeping: Keeping) -> None:
    await keeping.obey(directive(0, 4))
    (shard,) = keeping.shards
    pool = keeping.kv.pools[shard.number]
    whole = pool.blocks
    keeping.kv.reserve(kv_request(positions=whole, shard=shard.number))
    keeping.kv.budget_bytes -= 1000
    keeping.keeper.on_freed()
    assert pool.blocks == whole
    keeping.kv.release(1)
    keeping.keeper.on_freed()
    assert pool.blocks == whole - 1000 // 40
