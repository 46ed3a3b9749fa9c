"""What every Python client's checks share; the standard library alone, as others' packages differ.

A client's program is given one JSON object, the facts of a running Mesh, and prints one JSON line
for each check. A check fails by any exception.
"""

import json
import math
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CASES: Mapping[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())
POLL_SECONDS = 0.02
TOLERANCE = 1e-3
MOST_LETTERS = 400


class CheckFailedError(Exception):
    """Something is not as it should be; the message says what."""


def facts() -> Mapping[str, Any]:
    """What this program was told about the Mesh."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    return told


def report(check: str, outcome: str, why: str = "", seconds: float = 0.0) -> None:
    """Print one check's line."""
    line = {"check": check, "outcome": outcome, "why": why, "seconds": round(seconds, 2)}
    print(json.dumps(line), flush=True)  # noqa: T201


def run_checks(checks: Mapping[str, Callable[[], None]]) -> None:
    """Run them all, whatever becomes of each."""
    for name, check in checks.items():
        began = time.monotonic()
        try:
            check()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"[:MOST_LETTERS]
            report(name, "failed", why, time.monotonic() - began)
        else:
            report(name, "passed", seconds=time.monotonic() - began)


def expect(actual: object, expected: object, what: str) -> None:
    """Fail unless the two are equal."""
    if actual != expected:
        raise CheckFailedError(f"{what}: {actual!r}, not {expected!r}")


def expect_true(condition: object, what: str) -> None:
    if not condition:
        raise CheckFailedError(what)


def expect_vectors(vectors: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> None:
    """Fail unless these are as many vectors of as many figures, and alike."""
    expect([len(v) for v in vectors], [CASES["dimensions"]] * len(expected), "dimensions")
    for vector, other in zip(vectors, expected, strict=True):
        for figure, wanted in zip(vector, other, strict=True):
            if not math.isclose(figure, wanted, abs_tol=TOLERANCE):
                raise CheckFailedError(f"a vector has {figure}, raw HTTP gave {wanted}")


def expect_valid(text: str | None, schema: Mapping[str, Any]) -> None:
    """Fail unless this is JSON that keeps to one of our two small schemas."""
    value = json.loads(text or "")
    expect(list(value), schema["required"], "its properties")
    town, flag = value.values()
    expect_true(town in schema["properties"]["town"]["enum"], f"{town!r} is no town of the schema")
    expect_true(isinstance(flag, bool), f"{flag!r} is no boolean")


@contextmanager
def expect_error(*kinds: type[BaseException]) -> Iterator[list[Any]]:
    """Expect that the block raises one of these; the list holds it afterwards."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kinds as error:
        caught.append(error)
    else:
        raise CheckFailedError(f"no {' or '.join(kind.__name__ for kind in kinds)} was raised")


def wait_until_working(workers: Sequence[str]) -> None:
    """Wait until some Worker holds a Session."""
    _wait(lambda: any(_busy(url) for url in workers), 10.0, "no Worker began")


def expect_free(workers: Sequence[str]) -> None:
    """Fail unless no Worker holds a Session within two seconds."""
    _wait(lambda: not any(_busy(url) for url in workers), CASES["free_seconds"], "still busy")


def _busy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/v1/kv", timeout=10) as answer:
        told = json.load(answer)
    return bool(told["sessions"] or told["waiting"])


def _wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise CheckFailedError(f"{what} after {seconds:g} s")
        time.sleep(POLL_SECONDS)
