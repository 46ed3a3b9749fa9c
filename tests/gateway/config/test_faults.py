import pytest

from meshnet_gateway.config.faults import Faults, Place, SettingsError, item_of


def test_all_faults_are_told_at_once_and_each_once() -> None:
    faults = Faults()
    for place in ("a", "b", "a"):
        faults.add(place, "is wrong")

    with pytest.raises(SettingsError) as caught:
        faults.raise_if_any()
    assert caught.value.faults == ("a: is wrong", "b: is wrong")
    assert str(caught.value).splitlines()[1:] == ["  a: is wrong", "  b: is wrong"]
    assert caught.value.exit_status == 3


def test_without_a_fault_nothing_is_raised() -> None:
    Faults().raise_if_any()


def test_items_are_counted_from_0_in_a_file_and_as_records_from_1_in_a_variable() -> None:
    assert item_of("chat_models", 2).of("id") == "chat_models[2].id"
    assert str(item_of("chat_models", 2)) == "chat_models[2]"
    assert item_of("MESH_FEDERATION_PEERS", 2).of("id") == "MESH_FEDERATION_PEERS record 3: id"
    assert str(item_of("MESH_FEDERATION_PEERS", 2)) == "MESH_FEDERATION_PEERS record 3"


def test_a_field_is_named_as_where_it_came_from_names_it() -> None:
    assert Place(renamed={"meshes": "--mesh"}).of("meshes") == "--mesh"
