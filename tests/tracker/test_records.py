from meshnet_tracker.records import SigningKey


def test_a_signing_key_keeps_its_secret_out_of_logs() -> None:
    assert repr(SigningKey("k1", b"secret" * 5, 0.0)) == "SigningKey('k1')"
