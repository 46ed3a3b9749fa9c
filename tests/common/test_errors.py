import pytest

from meshnet_common.errors import MeshnetError, ProtocolError, TicketError


class LongTaleError(MeshnetError):
    """The tale is too long.

    What follows the first line is for readers of the code.
    """


def test_the_message_is_the_docstrings_first_line() -> None:
    assert str(LongTaleError()) == "The tale is too long."


def test_the_facts_of_an_occurrence_follow_the_message() -> None:
    error = LongTaleError("It has 9 chapters.")
    assert str(error) == "The tale is too long. It has 9 chapters."
    assert error.detail == "It has 9 chapters."


@pytest.mark.parametrize("leaf", [ProtocolError, TicketError])
def test_every_error_is_a_meshnet_error(leaf: type[MeshnetError]) -> None:
    assert issubclass(leaf, MeshnetError)
