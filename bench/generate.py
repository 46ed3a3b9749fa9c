"""The client of `bench.generate_server`."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from demo.model import ensure_model


class Generate:
    """A process that runs transformers' `generate`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def token_seconds(self, prompt_ids: Sequence[int], new_tokens: int, batch: int = 1) -> float:
        """Seconds per token after the first, of all `batch` answers together."""
        answer = self._ask(prompt_ids, new_tokens, batch)
        seconds: float = answer["total_seconds"] - answer["first_seconds"]
        return seconds / (new_tokens - 1) / batch

    def first_seconds(self, prompt_ids: Sequence[int]) -> float:
        """Seconds from a prompt to its first token."""
        return self._ask(prompt_ids, 1, 1)["first_seconds"]

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _ask(self, prompt_ids: Sequence[int], new_tokens: int, batch: int) -> dict[str, float]:
        assert self._process.stdin is not None
        request = {"prompt_ids": list(prompt_ids), "new_tokens": new_tokens, "batch": batch}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self.line())
        return answer


@contextmanager
def generate_server(dtype: str, threads: int) -> Iterator[Generate]:
    """Start the process and end it with the block."""
    model = str(ensure_model())
    arguments = [sys.executable, "-m", "bench.generate_server", model, dtype, str(threads)]
    with subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            server = Generate(process)
            server.line()
            yield server
        finally:
            process.terminate()
