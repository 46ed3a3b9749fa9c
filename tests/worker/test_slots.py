import os
from pathlib import Path

import pytest

from meshnet_worker.slots import HostShare, StateFolderError, claimed_identity, shared_host


def test_two_claims_of_one_folder_differ(tmp_path: Path) -> None:
    with claimed_identity(tmp_path) as first, claimed_identity(tmp_path) as second:
        assert first != second


def test_a_released_identity_is_used_again(tmp_path: Path) -> None:
    with claimed_identity(tmp_path) as first:
        pass
    with claimed_identity(tmp_path) as second:
        assert second == first


def test_the_lowest_free_identity_is_claimed(tmp_path: Path) -> None:
    with claimed_identity(tmp_path) as first:
        with claimed_identity(tmp_path) as second:
            pass
        with claimed_identity(tmp_path) as third:
            assert third == second != first


def test_identities_of_two_folders_differ(tmp_path: Path) -> None:
    with claimed_identity(tmp_path / "a") as first, claimed_identity(tmp_path / "b") as second:
        assert first != second


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    with claimed_identity(tmp_path / "deep" / "down") as worker_id:
        assert worker_id.startswith("w-")


def test_an_identity_that_was_half_written_is_made_anew(tmp_path: Path) -> None:
    with claimed_identity(tmp_path):
        pass
    (tmp_path / "worker-0.id").write_text("\n")
    with claimed_identity(tmp_path) as worker_id:
        assert worker_id.startswith("w-")


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StateFolderError, match="file") as caught, claimed_identity(file):
        pass
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(("cores", "threads"), [(8, [8, 4, 2]), (2, [2, 1, 1]), (1, [1, 1, 1])])
def test_workers_share_the_cores_of_their_host(
    tmp_path: Path, cores: int, threads: list[int]
) -> None:
    share = HostShare(tmp_path, cores)
    with shared_host(tmp_path):
        alone = share.threads()
        with shared_host(tmp_path):
            of_two = share.threads()
            with shared_host(tmp_path):
                of_three = share.threads()
    assert [alone, of_two, of_three] == threads
    assert share.threads() == cores


def test_a_host_is_shared_by_the_cores_that_this_process_may_use(tmp_path: Path) -> None:
    with shared_host(tmp_path) as share:
        assert share.threads() == len(os.sched_getaffinity(0))
