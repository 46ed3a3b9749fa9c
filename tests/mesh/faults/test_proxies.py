"""The proxies do to connections what they promise."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.mesh.faults.proxies import EVERYBODY, FaultProxy, Proxies

SHORT_SECONDS = 0.3
SECONDS = 5.0
LINK = b"GET /link?class=bulk&worker_id=w-1 HTTP/1.1\r\n"


@pytest.fixture
def echo() -> Iterator[int]:
    """A listener that sends back what it gets; the value is its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=_echo, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(SECONDS)


@pytest.fixture
def proxy(echo: int) -> Iterator[FaultProxy]:
    with Proxies() as proxies:
        yield proxies.open(echo)


def _echo(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(1024):
                connection.sendall(data)
        except OSError:
            pass


@contextmanager
def _dialled(proxy: FaultProxy, seconds: float = SECONDS) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), seconds) as dialled:
        yield dialled


def test_everything_passes_both_ways(proxy: FaultProxy) -> None:
    with _dialled(proxy) as dialled:
        dialled.sendall(LINK + b"x" * 100)
        assert _read(dialled, len(LINK) + 100) == LINK + b"x" * 100
    assert proxy.bulk_in["w-1"] == 100
    assert proxy.bulk_out["w-1"] == len(LINK) + 100


def test_silence_keeps_the_connection_and_what_was_sent_arrives_late(proxy: FaultProxy) -> None:
    with _dialled(proxy) as dialled:
        dialled.sendall(LINK)
        _read(dialled, len(LINK))
        proxy.silence("w-1")
        dialled.sendall(b"late")
        dialled.settimeout(SHORT_SECONDS)
        with pytest.raises(TimeoutError):
            dialled.recv(1)
        proxy.heal("w-1")
        dialled.settimeout(SECONDS)
        assert _read(dialled, 4) == b"late"


def test_silence_for_one_peer_is_none_for_another(proxy: FaultProxy) -> None:
    proxy.silence("w-2")
    with _dialled(proxy) as dialled:
        dialled.sendall(LINK)
        assert _read(dialled, len(LINK)) == LINK


def test_in_silence_a_new_connection_is_taken_and_nothing_more(proxy: FaultProxy) -> None:
    proxy.silence(EVERYBODY)
    with _dialled(proxy, SHORT_SECONDS) as dialled:
        dialled.sendall(LINK)
        with pytest.raises(TimeoutError):
            dialled.recv(1)


def test_a_cut_resets_the_connection_and_a_new_one_may_follow(proxy: FaultProxy) -> None:
    with _dialled(proxy) as dialled:
        dialled.sendall(LINK)
        _read(dialled, len(LINK))
        proxy.cut("w-1")
        with pytest.raises(ConnectionResetError):
            dialled.recv(1)
    with _dialled(proxy) as dialled:
        dialled.sendall(LINK)
        assert _read(dialled, len(LINK)) == LINK


def test_who_refuses_listens_again_at_the_same_port(proxy: FaultProxy) -> None:
    port = proxy.port
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError), _dialled(proxy):
        pass
    proxy.listen()
    assert proxy.port == port
    with _dialled(proxy) as dialled:
        dialled.sendall(LINK)
        assert _read(dialled, len(LINK)) == LINK


def _read(dialled: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = dialled.recv(size - len(data))
        assert piece, "it was closed"
        data += piece
    return data
