from meshnet_worker.weights.errors import WeightsError, mismatch


def test_a_mismatch_names_what_it_is_both_digests_and_what_to_do() -> None:
    error = mismatch("layers.1 of x.safetensors", "aa", "bb")
    assert isinstance(error, WeightsError)
    assert "layers.1 of x.safetensors has the SHA-256 bb, not aa" in str(error)
    assert "remove and add the preset" in str(error)
