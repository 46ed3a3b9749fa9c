"""Whether a JSON schema has any answer that ends; pure.

A list of at least one such list has none: whoever writes one never comes to its end. Each schema
is a rule: it can end if certain others can. What can end at once, and whatever follows from that,
can; the rest refers to itself without a way out. Counted generously: what depends on several
keywords together is taken to end.
"""

from collections import defaultdict, deque
from collections.abc import Iterable

from meshnet_common.openai.schema_refs import Schema, Targets

_SCALARS = frozenset({"boolean", "integer", "null", "number", "string"})


class _Rules:
    """Rules of the form: if all of these can end, that one can."""

    def __init__(self) -> None:
        self._missing: list[int] = []
        self._heads: list[int] = []
        self._used_in: dict[int, list[int]] = defaultdict(list)
        self._next_name = -1

    def new_name(self) -> int:
        """A name for a part of a schema, where its own is the id of its object."""
        self._next_name -= 1
        return self._next_name

    def add(self, head: int, needed: Iterable[int]) -> None:
        rule, needs = len(self._heads), set(needed)
        self._heads.append(head)
        self._missing.append(len(needs))
        for need in needs:
            self._used_in[need].append(rule)

    def ending(self) -> set[int]:
        """All that can end."""
        fresh = deque(
            head for head, missing in zip(self._heads, self._missing, strict=True) if not missing
        )
        found: set[int] = set()
        while fresh:
            name = fresh.popleft()
            if name in found:
                continue
            found.add(name)
            for rule in self._used_in[name]:
                self._missing[rule] -= 1
                if not self._missing[rule]:
                    fresh.append(self._heads[rule])
        return found


def has_finite_answer(root: Schema, targets: Targets) -> bool:
    """Whether something that ends can match a schema whose references have been checked."""
    rules = _Rules()
    for schema in targets:
        needed = [_own_part(rules, schema)]
        target = targets.of(schema)
        if target is not None:
            needed.append(id(target))
        needed += [id(part) for part in schema.get("allOf", ()) if isinstance(part, dict)]
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                needed.append(_one_of(rules, schema[keyword]))
        rules.add(id(schema), needed)
    return id(root) in rules.ending()


def _one_of(rules: _Rules, options: Iterable[Schema | bool]) -> int:
    name = rules.new_name()
    for option in options:
        rules.add(name, [id(option)] if isinstance(option, dict) else [])
    return name


def _own_part(rules: _Rules, schema: Schema) -> int:
    """What the keywords of one schema say that hold no alternatives."""
    name = rules.new_name()
    types = schema.get("type", _SCALARS)
    if (
        "const" in schema
        or "enum" in schema
        or _SCALARS.intersection([types] if isinstance(types, str) else types)
    ):
        rules.add(name, ())
        return name
    if "object" in types:
        rules.add(name, _of_properties(schema))
    if "array" in types:
        rules.add(name, _of_items(schema))
    return name


def _of_properties(schema: Schema) -> list[int]:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    needed = [properties.get(name, others) for name in schema.get("required", ())]
    return [id(part) for part in needed if isinstance(part, dict)]


def _of_items(schema: Schema) -> list[int]:
    fewest, first = schema.get("minItems", 0), schema.get("prefixItems", [])
    needed = [*first[:fewest]]
    if fewest > len(first):
        needed.append(schema.get("items"))
    return [id(part) for part in needed if isinstance(part, dict)]
