"""The clients, the Mesh that all of them ask, and how one client's program is run against it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from demo.local_mesh import LocalMesh, budget_for
from demo.model import embedder_folder, ensure_model
from meshnet_common.shard_range import ShardRange
from tests.clients.checks import CASES
from tests.clients.environments import node_environment, python_environment
from tests.mesh.harness import Reply, post, stream_lines

ROOT = Path(__file__).parents[2]
CHAT, ALIAS, EMBEDDER = "smollm2-135m", "another-name", "minilm"
WORKERS = 2
PROGRAM_SECONDS = 1800.0
# What some of them would otherwise look up in the network when they start.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
NO_SUCH_LETTER = "\N{SYMBOL FOR DATA LINK ESCAPE}"

# Each asks so small a model to be clever: to call a tool unasked, to copy a number or a name.
CLEVER = frozenset(
    f"standard: TestChat.{test}"
    for test in (
        *("test_agent_loop[model0]", "test_agent_loop[model1]"),
        *("test_tool_calling[model0]", "test_tool_calling[model1]"),
        *("test_tool_calling_async", "test_json_mode"),
        "test_unicode_tool_call_integration",
    )
)
# So small a model does not always end a string by itself: JSON that is cut is none.
CUT = "the length limit was reached"


class CheckLine(msgspec.Struct, frozen=True):
    """What a client's program said of one check."""

    check: str
    outcome: str
    why: str = ""
    seconds: float = 0.0

    @property
    def may_fail(self) -> bool:
        """Whether it is a standard test that fails by the small model (docs/benchmarks.md)."""
        is_standard = self.check.startswith("standard: ")
        return self.check in CLEVER or (is_standard and CUT in self.why)


@dataclass(frozen=True, slots=True)
class Client:
    """One client in one version; `program` makes its environment and gives its command."""

    name: str
    version: str
    program: Callable[[], Sequence[str]]

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"


def _python(environment: str, module: str) -> Callable[[], Sequence[str]]:
    return lambda: (str(python_environment(environment)), "-m", f"tests.clients.{module}")


def _node(script: str) -> Callable[[], Sequence[str]]:
    return lambda: ("node", str(node_environment() / script))


CLIENTS = (
    *(
        Client("openai (Python)", version, _python(f"openai-{version}", "openai_python"))
        for version in ("1.109.1", "2.14.0", "3.57.0")
    ),
    Client("openai (npm)", "6.49.0", _node("openai.mjs")),
    Client("ai + @ai-sdk/openai-compatible (npm)", "6.0.326 + 2.0.92", _node("ai_sdk.mjs")),
    Client("langchain-openai", "1.7.4", _python("langchain-openai-1.7.4", "langchain_client")),
    Client("litellm", "1.110.2", _python("litellm-1.110.2", "litellm_client")),
)


@dataclass(frozen=True, slots=True)
class ClientMesh:
    """A running Mesh, and what raw HTTP was answered there, to hold each client's answers to."""

    mesh: LocalMesh
    facts: Mapping[str, Any]

    def run(self, client: Client) -> list[CheckLine]:
        """Run one client's program; raises NodeMissingError or EnvironmentFailedError."""
        return run_program((*client.program(), json.dumps(self.facts)))


def run_program(command: Sequence[str], seconds: float = PROGRAM_SECONDS) -> list[CheckLine]:
    """Run a client's program; one that fails, says nothing or has no end is a failed check."""
    try:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        told, why = error.stdout or b"", f"It was not done after {seconds:g} s."
    else:
        told = ended.stdout
        why = _text(ended.stdout + ended.stderr)[-2000:] if ended.returncode else ""
    lines = [msgspec.json.decode(line, type=CheckLine) for line in _json_lines(_text(told))]
    if why or not lines:
        lines.append(CheckLine("its program", "failed", why or "It said nothing."))
    return lines


@contextmanager
def client_mesh(mesh: LocalMesh) -> Iterator[ClientMesh]:
    """Start two Workers that share the chat model, one that embeds, and two Trackers over them.

    One Tracker is as it comes. The other wants keys and writes comments into every stream, as
    others do only for clients that wait.
    """
    mesh.add_preset(ensure_model(), CHAT)
    plain = mesh.start_tracker()
    # Compiled steps round otherwise, so that one seed might give two texts; and they take CPU time.
    workers = mesh.start_workers(CHAT, WORKERS, ["--no-compile"])
    mesh.wait_until_served(CHAT)
    mesh.set_alias(ALIAS, CHAT)
    mesh.add_preset(embedder_folder(), EMBEDDER)
    embedder = mesh.preset(EMBEDDER)
    budget = budget_for(embedder, ShardRange(0, embedder.layer_count))
    workers.append(mesh.start_worker("embedder", budget, ["--no-compile"]))
    mesh.wait_until_served(EMBEDDER)
    comments = ("--ack-after-ms", "0", "--keep-alive-seconds", "0.1", "--require-api-key")
    held = mesh.start_tracker(*comments, name="tracker-held")
    facts = {
        "url": f"{plain.url}/v1",
        "held_url": f"{held.url}/v1",
        "key": mesh.create_key("clients"),
        "workers": [worker.url for worker in workers],
        "chat_model": CHAT,
        "chat_alias": ALIAS,
        "embedding_model": EMBEDDER,
    }
    yield ClientMesh(mesh, {**facts, **_raw_answers(plain.url)})


def raw_held_stream(facts: Mapping[str, Any]) -> list[str]:
    """The lines of the stream that the clients' check of comments asks for."""
    body = {"model": CHAT, **CASES["chat"], "stop": facts["held_stop"]}
    key = {"authorization": f"Bearer {facts['key']}"}
    return stream_lines(f"{facts['held_url']}/chat/completions", body, key)


def _raw_answers(url: str) -> dict[str, Any]:
    chat = _asked(post(f"{url}/v1/chat/completions", {"model": CHAT, **CASES["chat"]}))
    (choice,) = chat["choices"]
    text = choice["message"]["content"]
    body = {"model": EMBEDDER, "input": CASES["embeddings"]}
    vectors = _asked(post(f"{url}/v1/embeddings", body))["data"]
    return {
        "chat_text": text,
        "chat_tokens": chat["usage"]["total_tokens"],
        "chat_finish": choice["finish_reason"],
        # Text that may become this is held back up to its end: silence, with room for comments.
        "held_stop": text[:-1] + NO_SUCH_LETTER,
        "embeddings": [one["embedding"] for one in vectors],
    }


def _asked(reply: Reply) -> dict[str, Any]:
    if reply.status != 200:
        raise RuntimeError(f"{reply.status}: {reply.body.decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def _environment() -> dict[str, str]:
    """What we inherited, without what is about this Python alone."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    return {**ours, **OFFLINE}


def _text(output: bytes) -> str:
    return output.decode(errors="replace")


def _json_lines(output: str) -> Iterator[str]:
    return (line for line in output.splitlines() if line.startswith('{"check":'))
