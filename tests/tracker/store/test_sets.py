from sqlalchemy import select

from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import among
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.transactions import Transactions
from tests.tracker.store.meshes import join


async def test_rows_are_picked_by_any_number_of_names(
    store: Store, transactions: Transactions
) -> None:
    names = ["w1", "it's", 'a "name", with {all}', "w2"]
    for name in names:
        await join(store, name)
    for wanted in ([], ["w2"], names[:3], [*names, "stranger"]):
        async with transactions.read() as connection:
            query = select(workers.c.id).where(among(connection, workers.c.id, wanted))
            found = set((await connection.execute(query)).scalars())
        assert found == set(wanted) - {"stranger"}
