"""One GPU Group's budget: how many requests of its models may be in flight at once; pure.

Every member, a model or a fallback, has a floor that is kept free for it, and a target that the
adaptive limit sets. What is committed is, for each member, its floor or what it has in flight,
whichever is more. Admissions keep that, and so also the total, within the budget.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from meshnet_common.errors import MeshnetError

GROWTH = 2
"""Of a best-effort model's target counts what it uses, times this: it may double before others have
to make room for it, and what lies idle beyond that is lent. A limit that is less than half reached
does not rise either (ADR 33)."""


class FloorsAboveBudgetError(MeshnetError):
    """The floors of a GPU Group's models add up to more than its budget."""


@dataclass(slots=True)
class _Member:
    floor: int
    reserved: bool
    target: int
    in_flight: int = 0
    is_withdrawn: bool = False

    @property
    def committed(self) -> int:
        return max(self.floor, self.in_flight)

    @property
    def share(self) -> int:
        """What others leave to it."""
        used = min(self.target, GROWTH * self.in_flight)
        return self.floor if self.reserved else max(self.floor, used)


class GroupBudget:
    """The budget of one group; None is no cap."""

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        self._members: dict[str, _Member] = {}

    def register(self, model: str, floor: int, *, reserved: bool) -> None:
        """Let a model in, or change its floor and role; `reserved` is what is not best-effort.

        Raises FloorsAboveBudgetError, and then changes nothing.
        """
        floors = [m.floor for name, m in self._members.items() if name != model]
        _check_floors(self._budget, [*floors, floor])
        known = self._members.get(model)
        self._members[model] = _Member(
            floor,
            reserved,
            target=floor if known is None else max(floor, known.target),
            in_flight=0 if known is None else known.in_flight,
        )

    def withdraw(self, model: str) -> None:
        """Take a model's floor and share away; it is forgotten once nothing of it is in flight."""
        member = self._members[model]
        member.floor = member.target = 0
        member.reserved, member.is_withdrawn = False, True
        self._forget_if_gone(model)

    def set_budget(self, budget: int | None) -> None:
        """Change the budget; a lower one ends nothing, it only stops admissions.

        Raises FloorsAboveBudgetError, and then changes nothing.
        """
        _check_floors(budget, [member.floor for member in self._members.values()])
        self._budget = budget

    def retarget(self, model: str, target: int) -> None:
        """Set how many of a model the adaptive limit would allow; never below its floor."""
        member = self._members[model]
        member.target = max(member.floor, target)

    def admits(self, model: str) -> bool:
        """Tell whether one more of this model may begin."""
        member = self._members.get(model)
        if member is None or member.in_flight >= self._cap(model, member):
            return False
        if self._budget is None:
            return True
        # Above the budget after it was lowered, or floors raised: even a floor waits for the rest.
        if self.total >= self._budget:
            return False
        return member.in_flight < member.floor or self.committed < self._budget

    def begin(self, model: str) -> None:
        self._members[model].in_flight += 1

    def end(self, model: str) -> None:
        self._members[model].in_flight -= 1
        self._forget_if_gone(model)

    def allowed(self, model: str) -> int | None:
        """Say what the others' floors and targets leave for a model; None is no cap.

        It is never less than one: targets are wishes, and would keep a model without a floor out.
        """
        if self._budget is None:
            return None
        taken = sum(other.share for name, other in self._members.items() if name != model)
        return max(1, self._members[model].floor, self._budget - taken)

    def in_flight(self, model: str) -> int:
        member = self._members.get(model)
        return 0 if member is None else member.in_flight

    def target(self, model: str) -> int:
        return self._members[model].target

    @property
    def budget(self) -> int | None:
        return self._budget

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self._members)

    @property
    def total(self) -> int:
        return sum(member.in_flight for member in self._members.values())

    @property
    def committed(self) -> int:
        """What is in flight and what is kept free for floors."""
        return sum(member.committed for member in self._members.values())

    def _cap(self, model: str, member: _Member) -> int:
        allowed = self.allowed(model)
        return member.target if allowed is None else min(member.target, allowed)

    def _forget_if_gone(self, model: str) -> None:
        member = self._members[model]
        if member.is_withdrawn and not member.in_flight:
            del self._members[model]


def _check_floors(budget: int | None, floors: Iterable[int]) -> None:
    needed = sum(floors)
    if budget is not None and needed > budget:
        raise FloorsAboveBudgetError(f"Floors: {needed}, budget: {budget}.")
