from meshnet_common.ids import DirectiveId, PresetName, SessionId, WorkerId


def test_an_id_is_its_string_at_run_time() -> None:
    ids = (WorkerId("w"), SessionId("s"), DirectiveId("d"), PresetName("p"))
    assert ids == ("w", "s", "d", "p")
