import asyncio
import signal
import sqlite3
import sys
import time
from pathlib import Path

import aiohttp
import msgspec

from meshnet_tracker.opening import make_store
from tests.tracker import heads
from tests.tracker.builders import NOW, heartbeat, preset, registration, shard
from tests.tracker.heads import running_head
from tests.tracker.programs import TrackerProcess, run_command, tracker_process
from tests.tracker.running import CHAT

HEAVY = ("torch", "transformers", "bitsandbytes", "accelerate")


async def with_preset(folder: Path) -> None:
    async with make_store(str(folder / "tracker.sqlite3")) as store:
        await store.add_preset(preset(), NOW)


async def joined(session: aiohttp.ClientSession, url: str, worker_url: str) -> tuple[str, str]:
    """Register a Worker that serves everything; returns where it sends heartbeats and its token."""
    body = registration("w1", worker_url)
    async with session.post(f"{url}/v1/workers", json=to_json(body)) as answer:
        token = (await answer.json())["token"]
    where = f"{url}/v1/workers/w1"
    await beat(session, where, token)
    return where, token


def heavy_libraries(tracker: TrackerProcess) -> list[str]:
    """Name the heavy packages of which the process has mapped any file."""
    mapped = Path(f"/proc/{tracker.process.pid}/maps").read_text()
    return [name for name in HEAVY if f"/{name}/" in mapped]


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def to_json(message: object) -> object:
    return msgspec.to_builtins(message)


async def beat(session: aiohttp.ClientSession, where: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with session.post(
        f"{where}/heartbeat", json=to_json(heartbeat(shard(0, 6))), headers=headers
    ) as answer:
        return answer.status


async def test_a_running_tracker_has_loaded_no_torch_and_ends_clean(tmp_path: Path) -> None:
    await with_preset(tmp_path)
    async with (
        tracker_process(tmp_path) as tracker,
        aiohttp.ClientSession() as session,
        running_head(heads.streams) as head,
    ):
        await joined(session, tracker.url, head.url)
        async with session.post(f"{tracker.url}/v1/chat/completions", json=CHAT) as answer:
            assert answer.status == 200
            assert await answer.read() == heads.WHOLE
        assert heavy_libraries(tracker) == []
        assert await tracker.stop() == 0
    assert "tracker listening url=http://127.0.0.1:" in tracker.log.read_text()
    assert "Traceback" not in tracker.log.read_text()


async def test_no_module_of_the_tracker_imports_torch() -> None:
    code = (
        "import sys, meshnet_tracker.app, meshnet_tracker.registry, meshnet_tracker.presets.hub;"
        f"print(sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == "[]"


async def test_open_polls_and_streams_do_not_hold_up_the_end(tmp_path: Path) -> None:
    await with_preset(tmp_path)
    async with (
        tracker_process(tmp_path) as tracker,
        aiohttp.ClientSession() as session,
        running_head(heads.lives_after(3)) as head,
    ):
        _, token = await joined(session, tracker.url, head.url)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(tracker.url))
        writer.write(
            b"GET /v1/workers/w1/directives?wait=50 HTTP/1.1\r\nHost: tracker\r\n"
            b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
        )
        streamed = {**CHAT, "stream": True}
        async with session.post(f"{tracker.url}/v1/chat/completions", json=streamed) as stream:
            assert await stream.content.readuntil(b"\n\n") == heads.EVENTS[0]
            assert await tracker.stop(seconds=5) == 0
        assert b'{"directives":[]}' in await reader.read()
        writer.close()


async def test_a_tracker_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    await with_preset(tmp_path)
    async with aiohttp.ClientSession() as session, running_head(heads.streams) as head:
        async with tracker_process(tmp_path) as tracker:
            _, token = await joined(session, tracker.url, head.url)
            tracker.process.send_signal(signal.SIGKILL)
            await tracker.process.wait()
        async with tracker_process(tmp_path) as tracker:
            assert await beat(session, f"{tracker.url}/v1/workers/w1", token) == 200
            async with session.post(f"{tracker.url}/v1/chat/completions", json=CHAT) as answer:
                assert answer.status == 200


async def test_a_killed_workers_gap_shows_and_requests_are_told(tmp_path: Path) -> None:
    await with_preset(tmp_path)
    options = ("--heartbeat-seconds", "0.3", "--lost-after-seconds", "1")
    async with tracker_process(tmp_path, *options) as tracker, aiohttp.ClientSession() as session:
        await joined(session, tracker.url, "http://127.0.0.1:9")
        began = time.monotonic()
        async with asyncio.timeout(10):
            while True:
                async with session.get(f"{tracker.url}/v1/coverage/tiny") as answer:
                    if not (await answer.json())[0]["worker_count"]:
                        break
                await asyncio.sleep(0.05)
        assert time.monotonic() - began < 4
        async with session.post(f"{tracker.url}/v1/chat/completions", json=CHAT) as answer:
            assert answer.status == 503
            assert "0-5" in (await answer.json())["error"]["message"]


async def test_a_port_in_use_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with tracker_process(tmp_path) as tracker:
        port = port_of(tracker.url)
        database = str(tmp_path / "other" / "t.sqlite3")
        ended = await run_command("serve", "--port", str(port), "--database", database)
    assert ended.status == 3
    assert f"Port {port}" in ended.errors
    assert "--port" in ended.errors
    assert "Traceback" not in ended.errors


async def test_a_database_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    await with_preset(tmp_path)
    database = tmp_path / "tracker.sqlite3"
    with sqlite3.connect(database) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    for command in (("serve", "--port", "0"), ("migrate",), ("preset", "list")):
        ended = await run_command(*command, "--database", str(database))
        assert ended.status == 3
        assert "revision 9999" in ended.errors
        assert "Install the newer release" in ended.errors
        assert "Traceback" not in ended.errors


async def test_a_database_that_cannot_be_opened_is_said_so(tmp_path: Path) -> None:
    ended = await run_command("serve", "--port", "0", "--database", str(tmp_path))
    assert ended.status == 3
    assert "Traceback" not in ended.errors
