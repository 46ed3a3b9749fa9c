from meshnet_tracker.tokens import token_sha256


def test_of_a_token_a_sha256_is_kept() -> None:
    # The test vector "abc" of FIPS 180-2.
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert token_sha256("abc") == expected
