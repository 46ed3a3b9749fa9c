"""What a Worker does about a Rebalance Directive; pure.

A Worker re-checks what it is told: it keeps one run of Layers per Variant, and a word that it does
not know is refused and reported, never guessed at.
"""

from dataclasses import dataclass

from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.messages import Directive, DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_worker.shards import LocalShard


@dataclass(frozen=True, slots=True)
class Load:
    """Load these Layers; what is already there is not loaded again."""

    shard_range: ShardRange


@dataclass(frozen=True, slots=True)
class Drop:
    """Drain these Layers, then give their memory back."""

    shard_range: ShardRange


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The directive cannot be obeyed."""

    reason: str


Step = Load | Drop | Done | Refuse


class DirectiveRefusedError(MeshnetError):
    """The Worker cannot obey a Rebalance Directive."""


def next_step(shard: LocalShard | None, directive: Directive) -> Step:
    """Decide on a directive for the Variant of `shard`, which is None where nothing is held."""
    wanted = layers_of(directive)
    if wanted is None:
        return Refuse(f"[{directive.start_layer}, {directive.end_layer}) is no Shard Range")
    ready = shard.ready if shard else None
    match directive.kind:
        case DirectiveKind.LOAD_SHARD:
            return _load(ready, wanted)
        case DirectiveKind.DROP_SHARD:
            return _drop(ready, wanted)
        case _:
            return Refuse(f"{directive.kind!r} is a kind of directive that this release lacks")


def layers_of(directive: Directive) -> ShardRange | None:
    """The Layers that a directive names; None where no Layers can be."""
    try:
        return ShardRange(directive.start_layer, directive.end_layer)
    except ValueError:
        return None


def _load(ready: ShardRange | None, wanted: ShardRange) -> Step:
    if ready is None:
        return Load(wanted)
    if ready.contains(wanted):
        return Done()
    if not ready.touches(wanted):
        return Refuse(f"{wanted} would leave a gap beside the loaded {ready}")
    missing = wanted.minus(ready)
    if len(missing) > 1:
        return Refuse(f"{wanted} would extend the loaded {ready} at both ends at once")
    return Load(missing[0])


def _drop(ready: ShardRange | None, wanted: ShardRange) -> Step:
    dropped = ready.overlap(wanted) if ready else None
    if ready is None or dropped is None:
        return Done()
    if len(ready.minus(dropped)) > 1:
        return Refuse(f"dropping {wanted} would split the loaded {ready}")
    return Drop(dropped)
