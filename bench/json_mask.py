"""What keeping to a schema costs a Decode Step of the real model, and whether answers keep to it.

Speed: streams with and without a schema take turns on one Worker, at temperature 0 and at 1, all of
the same number of tokens: the schema wants a longer text than they get. Beside the seconds that a
client sees stands the engine's own CPU time per step, which other programs on the machine do not
move. Validity: every answer that came to its end is parsed and validated by the package jsonschema;
those that `max_tokens` cut say so themselves and are counted apart.
"""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import jsonschema
from rich.console import Console
from rich.table import Table

from bench.meshes import MODEL, BenchMesh, bench_mesh, median
from demo.local_mesh import LocalMesh
from meshnet_common.edge.logs import configure_logging

ROUNDS = 5
NEW_TOKENS = 64
TEMPERATURES = (0.0, 1.0)
SEEDS = range(4)
MOST_TOKENS = 256
AT_ONCE = 16
PROMPT = "Tell me about a person, a place and the weather there. Answer in JSON."

TEXT = {"type": "string", "maxLength": 40}


def closed(**properties: Any) -> dict[str, Any]:
    """An object with all of these properties and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LONG_TEXT = closed(story={"type": "string", "minLength": 2000})
TREE = closed(
    name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "scalars": closed(
        name=TEXT,
        age={"type": "integer", "minimum": 0, "maximum": 130},
        married={"type": "boolean"},
    ),
    "optional": {
        "type": "object",
        "properties": {
            "name": TEXT,
            "town": TEXT,
            "note": {"type": ["string", "null"], "maxLength": 9},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "nested arrays": closed(
        rows={
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
            "minItems": 1,
            "maxItems": 4,
        }
    ),
    "enumerations": closed(
        sky={"enum": ["clear", "cloudy", "overcast"]},
        wind={"enum": [0, 1, 2.5, None, True, ["gusts"]]},
        kind={"const": "weather"},
    ),
    "recursion": {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    "patterns": closed(
        plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
        day={"type": "string", "format": "date"},
        id={"type": "string", "format": "uuid"},
        address={"type": "string", "format": "ipv4"},
    ),
    "bounds": closed(
        percent={"type": "integer", "minimum": 0, "maximum": 100},
        share={"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        step={"type": "integer", "multipleOf": 5, "minimum": -20, "maximum": 1000},
        code={"type": "string", "minLength": 3, "maxLength": 8},
    ),
    "alternatives": closed(
        shape={
            "anyOf": [
                closed(kind={"const": "circle"}, radius={"type": "integer", "minimum": 1}),
                closed(kind={"const": "square"}, side={"type": "integer", "minimum": 1}),
                {"type": "null"},
            ]
        }
    ),
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 4},
    "merged": {"allOf": [closed(a={"type": "integer"}), {"properties": {"a": {"minimum": 3}}}]},
    "tuple": {
        "type": "array",
        "prefixItems": [{"enum": ["north", "south"]}, {"type": "integer", "maximum": 90}],
        "items": False,
        "minItems": 2,
    },
    "many properties": closed(**{f"is_day_{day:02}": {"type": "boolean"} for day in range(12)}),
    "any object": {"type": "object"},
}


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds per token as a client sees them, and the engine's CPU seconds per Decode Step."""

    client_seconds: float
    engine_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """One schema's answers: how many came to their end, and how many of those are valid."""

    schema: str
    ended: int
    valid: int
    cut: int


def main() -> None:
    """Print the tables and, as the last line, the figures as JSON."""
    configure_logging("warning")
    with bench_mesh("bfloat16", workers=1) as bench:
        ratios = [_print_speed(bench, temperature) for temperature in TEMPERATURES]
        answered = _answers(bench.mesh)
    table = Table(title=f"answers of SmolLM2-135M, {len(SEEDS)} seeds, temperatures 0 and 1")
    for heading in ("schema", "ended", "valid", "cut by max_tokens"):
        table.add_column(heading, justify="right")
    for one in answered:
        table.add_row(one.schema, str(one.ended), str(one.valid), str(one.cut))
    Console().print(table)
    figures = {
        "decode_speed_ratio": min(client for client, _ in ratios),
        "engine_cpu_ratio": min(engine for _, engine in ratios),
        "valid": sum(one.valid for one in answered),
        "answers": sum(one.ended for one in answered),
        "cut": sum(one.cut for one in answered),
    }
    print(json.dumps(figures))


def _print_speed(bench: BenchMesh, temperature: float) -> tuple[float, float]:
    """Measure, print the rounds, and return the two ratios of speeds: with over without."""
    rounds = _rounds(bench, temperature)
    table = Table(title=f"per token of {NEW_TOKENS}, temperature {temperature:g}, bfloat16")
    for heading in ("without", "with a schema", "engine CPU without", "with a schema"):
        table.add_column(heading, justify="right")
    for free, kept in rounds:
        seconds = (free.client_seconds, kept.client_seconds)
        cpu = (free.engine_cpu_seconds, kept.engine_cpu_seconds)
        table.add_row(*(f"{1000 * value:.2f} ms" for value in (*seconds, *cpu)))
    Console().print(table)
    client = median([free.client_seconds for free, _ in rounds]) / median(
        [kept.client_seconds for _, kept in rounds]
    )
    engine = median([free.engine_cpu_seconds for free, _ in rounds]) / median(
        [kept.engine_cpu_seconds for _, kept in rounds]
    )
    return round(client, 3), round(engine, 3)


def _rounds(bench: BenchMesh, temperature: float) -> Sequence[tuple[Paces, Paces]]:
    free: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
    kept = {"response_format": _format(LONG_TEXT)}
    for warmed in (free, kept):
        _pace(bench, temperature, warmed)
    return [
        (_pace(bench, temperature, free), _pace(bench, temperature, kept)) for _ in range(ROUNDS)
    ]


def _pace(bench: BenchMesh, temperature: float, fields: dict[str, Any]) -> Paces:
    steps, cpu_seconds = _decode_steps(bench)
    answer = bench.mesh.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=NEW_TOKENS,
        temperature=temperature,
        seed=6,
        stream=True,
        **fields,
    )
    first = 0.0
    for chunk in answer:
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = time.perf_counter()
    client_seconds = (time.perf_counter() - first) / (NEW_TOKENS - 1)
    steps_after, cpu_seconds_after = _decode_steps(bench)
    return Paces(client_seconds, (cpu_seconds_after - cpu_seconds) / (steps_after - steps))


def _decode_steps(bench: BenchMesh) -> tuple[int, float]:
    rows = [row for row in bench.steps() if not row.has_prefill]
    return sum(row.steps for row in rows), sum(row.cpu_seconds for row in rows)


def _answers(mesh: LocalMesh) -> list[Answered]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        asked = {
            name: [
                threads.submit(_verdict, mesh, schema, temperature, seed)
                for temperature, seed in product(TEMPERATURES, SEEDS)
            ]
            for name, schema in SCHEMAS.items()
        }
        return [_counted(name, [one.result() for one in asked[name]]) for name in asked]


def _counted(name: str, verdicts: Sequence[bool | None]) -> Answered:
    ended = [verdict for verdict in verdicts if verdict is not None]
    return Answered(name, len(ended), sum(ended), len(verdicts) - len(ended))


def _verdict(mesh: LocalMesh, schema: dict[str, Any], temperature: float, seed: int) -> bool | None:
    """Whether one answer is valid; None if it was cut."""
    answer = mesh.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{PROMPT} It is number {seed}."}],
        max_tokens=MOST_TOKENS,
        temperature=temperature,
        seed=seed,
        response_format=_format(schema),
    )
    (choice,) = answer.choices
    if choice.finish_reason == "length":
        return None
    try:
        value = json.loads(choice.message.content or "")
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _format(schema: dict[str, Any]) -> Any:
    if schema == SCHEMAS["any object"]:
        return {"type": "json_object"}
    described = {"name": "answer", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": described}


if __name__ == "__main__":
    main()
