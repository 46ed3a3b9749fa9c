"""Two real meshes with a Gateway each: Peers of one another, and one's embedder behind the other's.

All of it runs on the real chat model and the real embedder.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from demo.local_mesh import COVERAGE_SECONDS, LocalMesh, budget_for
from demo.processes import Program
from meshnet_common.shard_range import ShardRange
from tests.mesh.harness import Reply, chat_body, get, post

EMBEDDER = "minilm"
DIMENSIONS = 384
CIRCULAR = "each-thinks-the-other-has-it"
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
MODELS_OF_A_SITE = 2
TURNS = 3
BURST, BEFORE_THE_LOSS, CLIENTS = 60, 10, 4
SOON_SECONDS = 30.0
QUICKLY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Site:
    """A Mesh that serves a chat model of its own name, and its Gateway."""

    name: str
    mesh: LocalMesh
    gateway: Program
    settings: Path

    def says(self, **settings: Any) -> None:
        """Give the running Gateway other settings."""
        self.settings.write_text(json.dumps({"mesh_id": self.name, **settings}))
        self.gateway.process.send_signal(signal.SIGHUP)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(get(f"{self.gateway.url}/v1/gateway/status").body)
        return status

    def embedder(self) -> dict[str, Any]:
        answer = get(f"{self.gateway.url}/v1/gateway/embeddings/status")
        embedder: dict[str, Any] = json.loads(answer.body)
        return embedder


def port_of(program: Program) -> str:
    return str(urlsplit(program.url).port)


def start_site(name: str, mesh: LocalMesh, chat: Path, embedder: Path, settings: Path) -> Site:
    mesh.add_preset(chat, name)
    mesh.add_preset(embedder, EMBEDDER)
    mesh.start_tracker()
    presets = [mesh.preset(model) for model in (name, EMBEDDER)]
    budget = sum(budget_for(preset, ShardRange(0, preset.layer_count)) for preset in presets)
    mesh.start_worker("worker", 2 * budget)
    settings.write_text(json.dumps({"mesh_id": name}))
    return Site(name, mesh, mesh.start_gateway("--config", str(settings)), settings)


def introduce(here: Site, there: Site) -> None:
    """Make one the other's Peer, with the other's embedder before its own."""
    here.says(
        federation_peers=[
            {"id": there.name, "base_url": there.gateway.url, "models": ["*", CIRCULAR]}
        ],
        embedding_models=[
            {
                "id": EMBEDDER,
                "base_url": there.mesh.tracker_url,
                "dimensions": DIMENSIONS,
                "fallback": {"base_url": here.mesh.tracker_url},
            }
        ],
    )
    programs = here.mesh.programs
    programs.wait_for(lambda: here.status()["peers"], SOON_SECONDS, f"{here.name} has its Peer")
    programs.wait_for(
        lambda: ended_directives(here) == MODELS_OF_A_SITE,
        COVERAGE_SECONDS,
        f"{here.name} serves its models",
    )


@pytest.fixture(scope="module")
def sites(
    new_mesh: Callable[[], LocalMesh],
    smollm2: Path,
    minilm: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Site, Site]]:
    folder = tmp_path_factory.mktemp("settings")
    north, south = (
        start_site(name, new_mesh(), smollm2, minilm, folder / f"{name}.json")
        for name in ("north", "south")
    )
    for here, there in ((north, south), (south, north)):
        introduce(here, there)
    yield north, south
    for site in (north, south):
        site.mesh.programs.stop_all()


def ask(url: str, model: str) -> Reply:
    return post(f"{url}{CHAT}", chat_body(model, "Name a city.", max_tokens=8))


def embed(url: str) -> Reply:
    return post(f"{url}{EMBEDDINGS}", {"model": EMBEDDER, "input": "A cat sits on the mat."})


def ended_directives(site: Site) -> int:
    page = get(f"{site.mesh.tracker_url}/metrics").body.decode().splitlines()
    counts = [line for line in page if line.startswith("meshnet_tracker_directives_ended_total{")]
    return sum(round(float(line.rsplit(" ", 1)[1])) for line in counts)


def test_the_models_of_both_meshes_are_listed_with_their_origin(
    sites: tuple[Site, Site],
) -> None:
    north, south = sites
    listed = json.loads(get(f"{north.gateway.url}/v1/models").body)["data"]
    owners = {model["id"]: model["owned_by"] for model in listed}
    assert owners.keys() == {"north", "south", EMBEDDER}
    assert owners["south"] == south.name != owners["north"]


def test_a_model_of_here_and_one_of_a_peer_take_turns_and_nothing_is_loaded(
    sites: tuple[Site, Site],
) -> None:
    north, _ = sites
    direct = {site.name: ask(site.mesh.tracker_url, site.name).text for site in sites}

    for _ in range(TURNS):
        for model, text in direct.items():
            answer = ask(north.gateway.url, model)
            assert (answer.status, answer.text) == (200, text)

    assert [ended_directives(site) for site in sites] == [MODELS_OF_A_SITE] * len(sites)


def test_a_request_that_would_run_in_a_circle_ends_quickly(sites: tuple[Site, Site]) -> None:
    north, _ = sites
    began = time.monotonic()
    circular, unknown = (ask(north.gateway.url, name) for name in (CIRCULAR, "nobody-has-it"))
    assert time.monotonic() - began < QUICKLY_SECONDS
    assert (circular.status, circular.error["code"]) == (508, "federation_loop")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


def test_a_request_for_a_peer_that_is_away_is_held_until_it_is_back(
    sites: tuple[Site, Site],
) -> None:
    north, south = sites
    text, port = ask(south.mesh.tracker_url, south.name).text, port_of(south.gateway)
    south.mesh.programs.kill(south.gateway)
    with ThreadPoolExecutor(1) as client:
        held = client.submit(ask, north.gateway.url, south.name)
        north.mesh.programs.wait_for(
            lambda: any(peer["has_failed"] for peer in north.status()["peers"]),
            SOON_SECONDS,
            "the Peer is missed",
        )
        south.mesh.start_gateway("--config", str(south.settings), "--port", port)
        answer = held.result()
    assert (answer.status, answer.text) == (200, text)


def test_no_embedding_is_lost_when_the_embedder_dies_in_mid_burst(
    sites: tuple[Site, Site],
) -> None:
    north, south = sites
    port = str(urlsplit(south.mesh.tracker_url).port)
    tracker = next(one for one in south.mesh.programs.running if one.name == "tracker")
    with ThreadPoolExecutor(CLIENTS) as clients:
        burst = [clients.submit(embed, north.gateway.url) for _ in range(BURST)]
        for one in burst[:BEFORE_THE_LOSS]:
            one.result()
        south.mesh.programs.kill(tracker)
        answers = [one.result() for one in burst]
    assert {answer.status for answer in answers} == {200}
    embedder = north.embedder()
    assert (embedder["is_fallback"], embedder["failover_count"]) == (True, 1)
    assert embedder["active_endpoint"] == north.mesh.tracker_url

    south.mesh.start_tracker("--port", port)
    south.mesh.wait_until_served(EMBEDDER)
    north.mesh.programs.wait_for(
        lambda: embed(north.gateway.url).status == 200 and not north.embedder()["is_fallback"],
        SOON_SECONDS,
        "the embedder is back",
    )
    assert north.embedder()["recovery_count"] == 1
