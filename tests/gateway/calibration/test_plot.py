from xml.etree import ElementTree as ET

from meshnet_gateway.calibration.knee import Knee, Level, NotReached
from meshnet_gateway.calibration.plot import draw_levels

LEVELS = [Level(8, 40.0, 1.0, 1.5, 3), Level(1, 10.0, 0.5, 0.6), Level(4, 40.0, 0.5, 0.7, 0)]


def texts_of(picture: str) -> set[str]:
    return {text.strip() for text in ET.fromstring(picture).itertext() if text.strip()}


def test_the_picture_shows_all_curves_and_the_knee_and_loads_nothing() -> None:
    picture = draw_levels(LEVELS, Knee(4), "tokens/s")

    assert {"tokens/s", "p50", "p95", "waiting", "knee at 4", "requests in flight"} <= texts_of(
        picture
    )
    assert "href" not in picture
    assert "<script" not in picture


def test_without_a_knee_there_is_none_in_the_picture() -> None:
    assert not any("knee" in text for text in texts_of(draw_levels(LEVELS, NotReached(8), "x")))


def test_one_level_without_an_answer_can_be_drawn() -> None:
    assert "tokens/s" in texts_of(draw_levels([Level(1, 0.0, 0.0, 0.0)], Knee(1), "tokens/s"))
