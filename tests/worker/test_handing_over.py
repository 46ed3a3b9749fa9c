import pytest

from meshnet_common.openai.errors import model_unavailable
from meshnet_worker.handing_over import HandingOver
from tests.worker.builders import RecordingRoom

OWN_URL = "http://127.0.0.1:1"
OTHER_URL = "http://127.0.0.1:2"


class Moves:
    """Counts how often answers were moved, where these are the Head Workers of every model."""

    def __init__(self, *urls: str, answers: int = 1) -> None:
        self.count = 0
        self.urls = urls
        self.asked: list[str] = []
        shards = RecordingRoom(worker_id="w0").shards
        self.handing_over = HandingOver(
            shards, ["answer"] * answers, self._move, self._find, OWN_URL
        )

    def _move(self) -> None:
        self.count += 1

    async def _find(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        if not self.urls:
            raise model_unavailable("No layer has a ready worker.", 5)
        return self.urls


@pytest.mark.parametrize(
    ("urls", "moves"),
    [
        pytest.param((OWN_URL, OTHER_URL), 1, id="there is another"),
        pytest.param((f"{OWN_URL}/",), 0, id="there is only this one"),
        pytest.param((), 0, id="the Tracker knows none"),
    ],
)
async def test_answers_move_only_where_another_head_worker_is(
    urls: tuple[str, ...], moves: int
) -> None:
    one = Moves(*urls)
    await one.handing_over.offer(["tiny"])
    assert (one.count, one.asked) == (moves, ["tiny"])


async def test_nobody_is_asked_without_answers_or_models() -> None:
    without_answers, without_models = Moves(OTHER_URL, answers=0), Moves(OTHER_URL)
    await without_answers.handing_over.offer(["tiny"])
    await without_models.handing_over.offer([])
    assert [one.asked for one in (without_answers, without_models)] == [[], []]


def test_the_models_that_begin_here_are_those_with_the_first_layer_ready() -> None:
    one = Moves()
    (shard,) = one.handing_over.shards
    assert one.handing_over.begun_models() == [shard.preset.public_name(shard.variant.quantization)]
    shard.ready = None
    assert one.handing_over.begun_models() == []
