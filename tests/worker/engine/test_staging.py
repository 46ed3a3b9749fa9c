import torch

from meshnet_worker.engine.staging import Staging


def test_hidden_states_arrive_as_they_were_sent() -> None:
    rows = torch.arange(12, dtype=torch.bfloat16)
    raw = bytearray(rows.view(torch.uint8).numpy().tobytes())
    assert torch.equal(Staging(torch.device("cpu")).put(raw, torch.bfloat16), rows)
