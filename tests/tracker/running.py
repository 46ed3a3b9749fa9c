"""A Tracker on loopback inside the test's own loop: real store, real server, a clock that waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDictProxy

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveList,
    DirectiveState,
    RegisterWorker,
    ShardReport,
)
from meshnet_tracker.app import make_app, make_services
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning_pass import Planner, PlanningPasses
from meshnet_tracker.reconciler import Reconciler
from meshnet_tracker.services import Services
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, heartbeat, registration, shard

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@dataclass(frozen=True)
class Reply:
    """An answer that was read to its end."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@dataclass(frozen=True)
class RunningTracker:
    """Its URL, its parts, and what clients and Workers do with it."""

    url: str
    services: Services
    clock: ManualClock
    session: aiohttp.ClientSession

    @property
    def store(self) -> Store:
        return self.services.store

    async def get(self, where: str, token: str = "") -> Reply:
        return await self.call("GET", where, None, token)

    async def post(self, where: str, body: object, token: str = "") -> Reply:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.call("POST", where, data, token)

    async def call(self, method: str, where: str, data: bytes | None, token: str) -> Reply:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if data is not None:
            headers["Content-Type"] = "application/json"
        async with self.session.request(
            method, f"{self.url}{where}", data=data and BytesIO(data), headers=headers
        ) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    def reconciler(self, plan: Planner = plan_rebalance) -> Reconciler:
        """The planning loop with its planner in this process, which starts at once."""
        return Reconciler(self.services, PlanningPasses(self.store, plan).plan)

    async def join(self, offered: RegisterWorker | None = None) -> "JoinedWorker":
        """Register a Worker that holds nothing, and send its first heartbeat."""
        offered = offered or registration()
        reply = await self.post("/v1/workers", offered)
        assert reply.status == 201, reply.body
        worker = JoinedWorker(self, WorkerId(offered.worker_id), reply.json["token"])
        assert (await worker.beat()).status == 200
        return worker

    async def serve(self, worker_id: str, url: str, *shards: ShardReport) -> "JoinedWorker":
        """Join with a Worker at this URL that has these Shards ready."""
        worker = await self.join(registration(worker_id, url))
        await worker.beat(*shards)
        return worker


@dataclass(frozen=True)
class JoinedWorker:
    """A registered Worker, as far as it calls the Tracker."""

    tracker: RunningTracker
    worker_id: WorkerId
    token: str

    @property
    def where(self) -> str:
        return f"/v1/workers/{self.worker_id}"

    async def beat(
        self, *shards: ShardReport, directive_epoch: int = 0, leaving: bool = False
    ) -> Reply:
        body = heartbeat(*shards, directive_epoch=directive_epoch, leaving=leaving)
        return await self.tracker.post(f"{self.where}/heartbeat", body, self.token)

    async def directives(self, after: int = 0, wait: float = 0.0) -> Sequence[Directive]:
        where = f"{self.where}/directives?after={after}&wait={wait}"
        reply = await self.tracker.get(where, self.token)
        assert reply.status == 200, reply.body
        return msgspec.json.decode(reply.body, type=DirectiveList).directives

    async def report(self, directive: Directive, state: DirectiveState, **fields: object) -> Reply:
        where = f"{self.where}/directives/{directive.id}"
        return await self.tracker.post(where, {"state": state, **fields}, self.token)

    async def leave(self) -> Reply:
        return await self.tracker.call("DELETE", self.where, None, self.token)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that another task or process does; raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)


def shards_of_all(count: int, layers: int = 6) -> list[ShardReport]:
    """Split a model's Layers into equal Shards."""
    size = layers // count
    return [shard(number * size, (number + 1) * size) for number in range(count)]


@asynccontextmanager
async def running_tracker(
    database: Path, settings: TrackerSettings | None = None
) -> AsyncIterator[RunningTracker]:
    """Serve without the loops: a test that wants a pass or a look asks for it."""
    clock = ManualClock(NOW)
    store = Store.open(str(database))
    try:
        await store.migrate()
        services = await make_services(store, settings or TrackerSettings(), clock)
        await services.turn.renew()
        async with (
            upstream_session(idle_seconds=None) as upstream,
            listening(make_app(services, upstream), "127.0.0.1", 0) as url,
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=20)
            ) as session,
        ):
            yield RunningTracker(url, services, clock, session)
            services.directives.close()
    finally:
        await store.close()
