"""How much a JSON schema makes when its parts are combined; pure.

Where several keywords of one schema hold schemas, whoever compiles it merges them: each alternative
of one with each of the other, and everything inside, references followed. A few lines can make
millions of combinations so. They are counted before anything is built.

    allOf [A | B, C | D]                  four alternatives: AC, AD, BC, BD
    {"$ref": "#/$defs/a", "minimum": 1}   all of `a` once more
"""

from collections.abc import Iterator
from typing import NamedTuple

from meshnet_common.openai.schema_refs import Refuse, Schema, Targets, inner_schemas

MOST_ALTERNATIVES = 128
MOST_MERGED = 4000
_SETTLED = frozenset({"$defs", "definitions", "$ref", "allOf", "anyOf", "oneOf", "type"})
"""Keywords that are counted by themselves, or change nothing about what is merged."""
_MUCH = 10**6


class _Size(NamedTuple):
    """Of a schema written out: its alternatives, and the schemas in it."""

    alternatives: int
    schemas: int


_ONE = _Size(1, 1)


def check_combinations(targets: Targets, refuse: Refuse) -> None:
    """Raise ApiError for a schema that makes too many; its references have been checked."""
    sizes = _Sizes(targets)
    merged = 0
    for schema in targets:
        factors = list(sizes.factors(schema))
        if len(factors) < 2:
            continue
        merged += sum(factor.schemas for factor in factors)
        if _product(factors) > MOST_ALTERNATIVES or merged > MOST_MERGED:
            raise refuse((), "combines too many schemas (`allOf`, or `anyOf` beside others)")


class _Sizes:
    """Sizes of all schemas of a document; one within itself counts once."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._sizes: dict[int, _Size] = {}
        for schema in targets:
            self._settle(schema)

    def factors(self, schema: Schema) -> Iterator[_Size]:
        """What has to be merged with each other."""
        if not schema.keys() <= _SETTLED:
            yield _ONE
        target = self._targets.of(schema)
        if target is not None:
            yield self._of(target)
        for part in schema.get("allOf", ()):
            yield self._of(part)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                options = [self._of(option) for option in schema[keyword]]
                alternatives = sum(option.alternatives for option in options)
                yield _Size(alternatives, sum(option.schemas for option in options))

    def _of(self, schema: Schema | bool) -> _Size:
        return _ONE if isinstance(schema, bool) else self._sizes.get(id(schema), _ONE)

    def _settle(self, first: Schema) -> None:
        # By hand, since references make longer chains than the interpreter has room for.
        stack = [(first, self._needed(first))]
        entered = {id(first)}
        while stack:
            schema, needed = stack[-1]
            following = next(needed, None)
            if following is None:
                self._sizes[id(schema)] = self._size_of(schema)
                stack.pop()
            elif id(following) not in self._sizes and id(following) not in entered:
                entered.add(id(following))
                stack.append((following, self._needed(following)))

    def _needed(self, schema: Schema) -> Iterator[Schema]:
        yield from inner_schemas(schema)
        target = self._targets.of(schema)
        if target is not None:
            yield target

    def _size_of(self, schema: Schema) -> _Size:
        alternatives = _product(self.factors(schema))
        schemas = 1 + sum(self._of(part).schemas for part in self._needed(schema))
        return _Size(min(alternatives, _MUCH), min(schemas, _MUCH))


def _product(factors: Iterator[_Size] | list[_Size]) -> int:
    product = 1
    for factor in factors:
        product = min(product * factor.alternatives, _MUCH)
    return product
