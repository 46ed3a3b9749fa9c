from meshnet_common.openai.chat_writer import ChatWriter
from meshnet_common.openai.pieces import FinishReason, TextPiece, WholeChoice
from meshnet_common.openai.writer import AnswerIdentity, Usage, Writer


def test_usage_adds_up() -> None:
    assert Usage.of(3, 4) == Usage(3, 4, 7)


def test_a_writer_depends_on_what_it_is_given_and_nothing_else() -> None:
    writers: list[Writer] = [ChatWriter(AnswerIdentity("a", 1, "m", "fp")) for _ in range(2)]
    one, other = (
        [
            *writer.begin(0),
            *writer.pieces(0, [TextPiece("x")]),
            *writer.finish(0, FinishReason.STOP),
            *writer.usage(Usage.of(1, 2)),
            writer.whole([WholeChoice(0, (), FinishReason.STOP)], Usage.of(1, 2)),
        ]
        for writer in writers
    )
    assert one == other
