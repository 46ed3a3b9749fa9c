"""Schemathesis throws requests at a running Mesh, made from our own OpenAPI document."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.local_mesh import LocalMesh, budget_for
from meshnet_common.shard_range import ShardRange
from tests.mesh.harness import get
from tests.mesh.small_models import gpt2_config, save_random_model

SECONDS = 60
SEED = 1
CHAT, EMBEDDER = "small", "minilm"
# An answer that is not held to any length ends here.
CONTEXT_TOKENS = 64
# Which bodies make sense together no schema says: those that do not are 400.
LEFT_OUT = "positive_data_acceptance,use_after_free,ensure_resource_availability"


@pytest.fixture(scope="module")
def mesh(
    new_mesh: Callable[[], LocalMesh], minilm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalMesh]:
    config = gpt2_config()
    config.n_positions = CONTEXT_TOKENS
    folder = save_random_model(config, tmp_path_factory.mktemp("models") / "short")
    mesh = new_mesh()
    mesh.add_preset(folder, CHAT)
    mesh.add_preset(minilm, EMBEDDER)
    mesh.start_tracker()
    presets = [mesh.preset(CHAT), mesh.preset(EMBEDDER)]
    wanted = sum(budget_for(preset, ShardRange(0, preset.layer_count)) for preset in presets)
    mesh.start_worker("worker", 2 * wanted)
    for model in (CHAT, EMBEDDER):
        mesh.wait_until_served(model)
    yield mesh
    mesh.programs.stop_all()


def with_known_models(document: dict[str, Any]) -> dict[str, Any]:
    """Let most requests be for a model that is there: an unknown one shows little."""
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        if name.endswith("Body") and "model" in schema["properties"]:
            known = EMBEDDER if name == "EmbeddingBody" else CHAT
            schema["properties"]["model"] = {"enum": [known, known, "nothing"]}
    return document


def test_no_request_makes_the_document_untrue(mesh: LocalMesh, tmp_path: Path) -> None:
    document = with_known_models(json.loads(get(f"{mesh.tracker_url}/openapi.json").body))
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    ended = subprocess.run(
        (
            *(str(Path(sys.executable).with_name("schemathesis")), "run", "openapi.json"),
            *("--url", mesh.tracker_url, "--seed", str(SEED), "--max-time", str(SECONDS)),
            *("--phases", "examples,coverage,fuzzing", "--exclude-checks", LEFT_OUT),
            *("--mode", "all", "--continue-on-failure", "--request-timeout", "30"),
            # In one thread: two that parse Python at once may fail in 3.11, of no fault of ours.
            *("--suppress-health-check", "all", "--no-color", "--workers", "1"),
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS + 120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
