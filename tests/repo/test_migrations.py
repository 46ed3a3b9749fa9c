"""The schema has one history: two heads would make `migrate` ambiguous."""

from alembic.script import ScriptDirectory

from tests.repo.tree import ROOT


def test_there_is_exactly_one_alembic_head() -> None:
    assert len(ScriptDirectory(str(ROOT / "migrations")).get_heads()) == 1
