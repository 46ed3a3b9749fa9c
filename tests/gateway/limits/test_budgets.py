import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meshnet_gateway.limits.budgets import FloorsAboveBudgetError, GroupBudget


def budget_of(budget: int | None, **floors: int) -> GroupBudget:
    """Models whose names begin with `chat` are reserved, all others best-effort."""
    group = GroupBudget(budget)
    for model, floor in floors.items():
        group.register(model, floor, reserved=model.startswith("chat"))
    return group


def begin(group: GroupBudget, model: str, times: int) -> None:
    for _ in range(times):
        assert group.admits(model)
        group.begin(model)


def test_floors_above_the_budget_are_refused_with_both_numbers_and_change_nothing() -> None:
    group = budget_of(4, chat=3)
    with pytest.raises(FloorsAboveBudgetError, match="Floors: 5, budget: 4"):
        group.register("embed", 2, reserved=False)
    with pytest.raises(FloorsAboveBudgetError, match="Floors: 3, budget: 2"):
        group.set_budget(2)
    assert (group.members, group.budget) == (("chat",), 4)


def test_allowed_leaves_the_floors_of_reserved_and_the_targets_of_best_effort_models() -> None:
    group = budget_of(10, chat=2, chat2=1, embed=1, vision=1)
    group.retarget("chat", 8)
    group.retarget("vision", 3)
    begin(group, "vision", 2)
    assert group.allowed("embed") == 10 - 2 - 1 - 3
    assert group.allowed("chat") == 10 - 1 - 1 - 3


@pytest.mark.parametrize(("in_flight", "left"), [(0, 7), (1, 6), (2, 4), (3, 2), (4, 2), (7, 2)])
def test_of_a_best_effort_target_others_lack_what_is_used_and_as_much_again(
    in_flight: int, left: int
) -> None:
    group = budget_of(8, chat=2, embed=1)
    group.retarget("chat", 200)
    group.retarget("embed", 7)
    for _ in range(in_flight):
        group.begin("embed")
    assert group.allowed("chat") == left


def test_the_sum_that_the_formula_alone_would_let_above_the_budget_stays_within_it() -> None:
    group = budget_of(6, chat=2, embed=1)
    group.retarget("chat", 5)
    group.retarget("embed", 6)
    assert group.allowed("embed") == 4
    begin(group, "embed", 4)
    begin(group, "chat", 2)
    assert not group.admits("chat")
    assert group.total == 6


def test_a_reserved_model_below_its_floor_is_admitted_however_full_the_others_are() -> None:
    group = budget_of(3, chat=1, embed=1)
    group.retarget("embed", 9)
    begin(group, "embed", 2)
    assert not group.admits("embed")
    assert group.admits("chat")


def test_a_best_effort_model_gets_its_floor_beside_greedy_others() -> None:
    group = budget_of(4, chat=2, embed=1)
    group.retarget("chat", 9)
    begin(group, "chat", 3)
    assert not group.admits("chat")
    assert group.admits("embed")


def test_a_model_without_a_floor_is_not_kept_out_by_the_targets_of_others() -> None:
    group = budget_of(4, embed=1, found=0)
    group.retarget("embed", 9)
    group.retarget("found", 5)
    begin(group, "embed", 3)
    begin(group, "found", 1)
    assert not group.admits("found")


def test_no_budget_is_no_cap_but_targets_hold() -> None:
    group = budget_of(None, chat=1)
    group.retarget("chat", 100)
    begin(group, "chat", 100)
    assert not group.admits("chat")
    assert group.allowed("chat") is None


def test_no_target_lies_below_the_floor() -> None:
    group = budget_of(4, chat=2)
    group.retarget("chat", 0)
    assert group.target("chat") == 2
    begin(group, "chat", 2)


def test_a_lower_budget_only_stops_admissions() -> None:
    group = budget_of(6, chat=1, embed=1)
    group.retarget("embed", 6)
    begin(group, "embed", 5)
    group.set_budget(2)
    assert group.total == 5
    assert not group.admits("chat")
    for _ in range(4):
        group.end("embed")
    assert group.admits("chat")
    assert not group.admits("embed")


def test_a_model_taken_away_is_forgotten_when_its_last_request_ends() -> None:
    group = budget_of(4, chat=2, embed=2)
    begin(group, "embed", 1)
    group.withdraw("embed")
    assert not group.admits("embed")
    assert group.committed == 3
    group.end("embed")
    assert group.members == ("chat",)
    assert not group.admits("embed")


def test_a_model_may_change_its_floor_while_requests_of_it_run() -> None:
    group = budget_of(4, chat=1)
    begin(group, "chat", 1)
    group.register("chat", 3, reserved=True)
    assert group.in_flight("chat") == 1
    begin(group, "chat", 2)


def test_a_model_that_wishes_for_nothing_at_times_is_not_forgotten() -> None:
    group = budget_of(None, vision=0)
    group.retarget("vision", 1)
    begin(group, "vision", 1)
    group.retarget("vision", 0)
    group.end("vision")
    group.retarget("vision", 1)
    assert group.admits("vision")


FALLBACK = "embedding:fallback"
FLOORS = {"chat": 2, "chat2": 1, "embed": 1, "vision": 0, FALLBACK: 1}
MODELS = st.sampled_from(tuple(FLOORS))
BUDGETS = st.none() | st.integers(sum(FLOORS.values()), 12)


class GroupMachine(RuleBasedStateMachine):
    """A group whose embedder lives elsewhere and falls back into it.

    Requests arrive, end or are cancelled, targets and budgets change, the embedder fails over.
    """

    @initialize(budget=BUDGETS)
    def start(self, budget: int | None) -> None:
        self.group = budget_of(budget, **FLOORS)
        self.primary = budget_of(4, embedder=1)
        self.primary.retarget("embedder", 4)
        self.failed_over = False
        self.most = budget

    @rule(model=MODELS)
    def a_request_arrives(self, model: str) -> None:
        if model == FALLBACK and not self.failed_over:
            if self.primary.admits("embedder"):
                self.primary.begin("embedder")
            return
        below_floor = self.group.in_flight(model) < FLOORS[model]
        if self.group.admits(model):
            self.group.begin(model)
            assert self.group.in_flight(model) <= self.group.target(model)
        else:
            above = self.group.budget is not None and self.group.committed > self.group.budget
            assert above or not below_floor, "an arrival below its floor was queued"

    @rule(model=MODELS)
    def a_request_ends_or_is_cancelled(self, model: str) -> None:
        if self.group.in_flight(model):
            self.group.end(model)

    @rule()
    def an_embedding_of_the_primary_ends(self) -> None:
        if self.primary.total:
            self.primary.end("embedder")

    @rule(model=MODELS, wanted=st.integers(0, 20))
    def a_target_changes(self, model: str, wanted: int) -> None:
        self.group.retarget(model, wanted)

    @rule(budget=BUDGETS)
    def the_budget_changes(self, budget: int | None) -> None:
        self.group.set_budget(budget)
        self.most = None if budget is None else max(budget, self.group.total)

    @rule()
    def the_embedder_fails_over_or_returns(self) -> None:
        self.failed_over = not self.failed_over

    @precondition(lambda self: self.group.total == 0)
    @rule()
    def in_an_idle_group_nobody_starves(self) -> None:
        budget = self.group.budget
        spare = budget is None or self.group.committed < budget
        for model, floor in FLOORS.items():
            assert self.group.admits(model) == bool(floor or (spare and self.group.target(model)))

    @rule()
    def what_idle_models_wish_for_is_lent(self) -> None:
        group, budget = self.group, self.group.budget
        (busy, *others) = [name for name in FLOORS if group.in_flight(name)] or ["chat"]
        if others or budget is None or group.total > budget:
            return
        has_room = group.in_flight(busy) < FLOORS[busy] or group.committed < budget
        wishes = group.in_flight(busy) < group.target(busy)
        assert group.admits(busy) == (has_room and wishes)

    @invariant()
    def the_total_only_falls_while_it_is_above_a_lowered_budget(self) -> None:
        assert self.most is None or self.group.total <= self.most
        if self.most is not None and self.group.budget is not None:
            self.most = max(self.group.budget, self.group.total)

    @invariant()
    def no_model_goes_below_its_floor(self) -> None:
        assert all(self.group.target(model) >= floor for model, floor in FLOORS.items())


TestGroupMachine = GroupMachine.TestCase
