"""The proof itself, on the CPU: a pass that is run again stands for one that is replayed."""

import pytest
import torch

from meshnet_worker.engine import graph_proof
from meshnet_worker.engine.cuda_capture import Run
from meshnet_worker.engine.fixed import FixedRows
from meshnet_worker.engine.graph_proof import differences, is_proved, prove_graphs
from meshnet_worker.engine.padding import Padded
from meshnet_worker.engine_port import Noted

CPU = torch.device("cpu")


def again(run: Run) -> Run:
    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_replay_is_found_right(dtype: torch.dtype) -> None:
    assert differences(CPU, dtype, lambda: again) == []


def test_a_replay_that_reads_no_new_numbers_is_found_wrong() -> None:
    def stale(run: Run) -> Run:
        output = run()
        return lambda: output

    assert "a replay computes something else" in differences(CPU, torch.float32, lambda: stale)


def test_padded_rows_that_write_to_a_session_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    put = FixedRows.put

    def careless(fixed: FixedRows, padded: Padded) -> None:
        put(fixed, padded)
        # A row of nobody writes where the last Session reads nothing yet.
        if padded.held[-1] == 1 and len(padded.held) > 3:
            fixed._slots[-1] = 6 * graph_proof.BLOCK_POSITIONS - 1

    monkeypatch.setattr(FixedRows, "put", careless)
    assert differences(CPU, torch.float32, lambda: again) == [
        "a replay of made-up Layers writes where it should not"
    ]


def test_a_device_that_cannot_capture_is_not_used_and_says_why() -> None:
    notes: list[Noted] = []
    prove_graphs(CPU, notes.append)
    assert not is_proved(CPU)
    assert [note.is_warning for note in notes] == [True]


def test_a_device_on_which_all_is_right_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_proof._Devices, "proved", set())
    monkeypatch.setattr(graph_proof, "CudaCapture", lambda _device: again)
    notes: list[Noted] = []
    prove_graphs(CPU, notes.append)
    assert is_proved(CPU)
    assert notes == []
