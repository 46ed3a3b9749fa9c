from meshnet_common.openai.pieces import TextPiece, ToolCallPiece
from meshnet_worker.text.call_text import Marker, TellablePieces


def told(*texts: str | None) -> TellablePieces:
    """Some text; None is a call."""
    pieces = TellablePieces()
    for text in texts:
        if text is None:
            pieces.take_gap()
            pieces.add_call(ToolCallPiece(0, "c", "f"))
            pieces.follows_call = True
        else:
            for character in text:
                pieces.add_text(character)
    return pieces


def test_a_marker_holds_back_only_what_may_become_it() -> None:
    marker = Marker("<<a")

    assert [marker.feed(character) for character in "<<<b"] == ["", "", "<", "<<b"]
    assert "".join(marker.feed(character) for character in "x<<a") == "x"
    assert marker.is_found
    assert (marker.drop(), marker.is_found) == ("<<a", False)


def test_an_empty_marker_is_never_there() -> None:
    marker = Marker("")

    assert (marker.feed("a"), marker.is_found, marker.goes_on("a")) == ("a", False, False)


def test_blanks_beside_a_call_are_not_told() -> None:
    pieces = told(" a b \n", None, "\n c ")
    pieces.end_text()

    assert pieces.take() == [TextPiece(" a b"), ToolCallPiece(0, "c", "f"), TextPiece("c ")]


def test_blanks_wait_for_what_follows_them() -> None:
    pieces = told("a  ")

    assert pieces.take() == [TextPiece("a")]
    pieces.add_text("b")
    assert pieces.take() == [TextPiece("  b")]


def test_fragments_of_arguments_that_come_together_are_one() -> None:
    pieces = told(None)
    for fragment in "{}":
        pieces.add_call(ToolCallPiece(0, arguments=fragment))

    assert pieces.take() == [ToolCallPiece(0, "c", "f"), ToolCallPiece(0, arguments="{}")]
