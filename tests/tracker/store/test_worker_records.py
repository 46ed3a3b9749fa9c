from meshnet_common.ids import WorkerId
from meshnet_tracker.records import WorkerRecord
from meshnet_tracker.store import worker_records
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.transactions import Transactions
from tests.tracker.builders import load, shard
from tests.tracker.store.meshes import issue, join, leave


async def test_pages_together_are_the_whole_list(store: Store, transactions: Transactions) -> None:
    for number in range(7):
        await join(store, f"w{number}", shard(0, 3))
    await issue(store, load("w3", 3, 6))
    await leave(store, "w5")
    paged: list[WorkerRecord] = []
    after = WorkerId("")
    while True:
        async with transactions.read() as connection:
            page = await worker_records.load_page(connection, after, 2)
        if not page:
            break
        paged += page
        after = page[-1].worker_id
    assert tuple(paged) == await store.workers()
    assert [record.worker_id for record in paged] == ["w0", "w1", "w2", "w3", "w4", "w6"]
