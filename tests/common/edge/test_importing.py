import gc

import pytest

from meshnet_common.edge.importing import lasting_imports


def test_nothing_that_was_imported_is_looked_at_for_garbage() -> None:
    before = gc.get_freeze_count()
    with lasting_imports():
        assert not gc.isenabled()
        imported = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(imported)


def test_an_import_that_fails_leaves_garbage_collection_on() -> None:
    with pytest.raises(ModuleNotFoundError), lasting_imports():
        raise ModuleNotFoundError
    assert gc.isenabled()
