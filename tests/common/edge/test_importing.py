import gc

import pytest

from meshnet_common.edge.importing import lasting_imports


def test_nothing_that_was_imported_is_looked_at_for_garbage() -> None:
    try:
        with lasting_imports():
            assert not gc.isenabled()
            imported: list[list[int]] = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(imported)
    finally:
        gc.unfreeze()


def test_an_import_that_fails_leaves_garbage_collection_on() -> None:
    try:
        with pytest.raises(ModuleNotFoundError), lasting_imports():
            raise ModuleNotFoundError
        assert gc.isenabled()
    finally:
        gc.unfreeze()
