import pytest

from meshnet_worker.options import (
    AutoVram,
    BytesOfVram,
    ShareOfVram,
    SizeOptionError,
    Vram,
    budget_bytes,
    parse_size,
    parse_vram,
    split_urls,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "vram"),
    [
        ("auto", AutoVram()),
        (" Auto ", AutoVram()),
        ("80%", ShareOfVram(0.8)),
        ("12.5 %", ShareOfVram(0.125)),
        ("100%", ShareOfVram(1.0)),
        ("2GiB", BytesOfVram(2 * GIB)),
        ("2 gib", BytesOfVram(2 * GIB)),
        ("1.5GiB", BytesOfVram(3 * GIB // 2)),
        ("10GB", BytesOfVram(10**10)),
        ("500MB", BytesOfVram(500 * 10**6)),
        ("64KiB", BytesOfVram(65536)),
        ("1TiB", BytesOfVram(1 << 40)),
        ("12345", BytesOfVram(12345)),
        ("12345B", BytesOfVram(12345)),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, vram: Vram) -> None:
    assert parse_vram(text) == vram


@pytest.mark.parametrize(
    "text",
    [
        *("", "none", "0", "0%", "101%", "-1GiB", "10Gi", "10 apples", "%", "1e9", "GiB", "ten"),
        *("nan", "inf", "0.9", "0.0000001KB", "9" * 400, f"{'9' * 400}TB", "2000000TiB"),
    ],
)
def test_what_is_no_size_is_refused_with_the_ways_to_write_one(text: str) -> None:
    with pytest.raises(SizeOptionError, match="write auto, 80%, 10GiB"):
        parse_vram(text)
    with pytest.raises(SizeOptionError, match="write 100GB"):
        parse_size(text)


def test_auto_leaves_room_for_passes_on_a_device_and_half_of_a_hosts_memory() -> None:
    assert budget_bytes(AutoVram(), 1000, is_cpu=False) == 900
    assert budget_bytes(AutoVram(), 1000, is_cpu=True) == 500


@pytest.mark.parametrize("is_cpu", [True, False])
def test_a_share_is_one_of_the_free_memory(is_cpu: bool) -> None:
    assert budget_bytes(ShareOfVram(0.25), 1000, is_cpu=is_cpu) == 250


@pytest.mark.parametrize("is_cpu", [True, False])
def test_a_size_is_lent_as_it_is(is_cpu: bool) -> None:
    assert budget_bytes(BytesOfVram(700), 1000, is_cpu=is_cpu) == 700


@pytest.mark.parametrize(
    ("texts", "urls"),
    [
        (("http://a",), ("http://a",)),
        (("http://a", "http://b"), ("http://a", "http://b")),
        (("http://a,http://b", "http://c"), ("http://a", "http://b", "http://c")),
        ((" http://a , http://b,", "http://a"), ("http://a", "http://b")),
        (("", ","), ()),
    ],
)
def test_urls_are_repeated_or_with_commas_between(
    texts: tuple[str, ...], urls: tuple[str, ...]
) -> None:
    assert split_urls(texts) == urls
