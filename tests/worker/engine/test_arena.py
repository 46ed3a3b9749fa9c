import psutil
import torch

from meshnet_worker.engine.arena import (
    ALIGNMENT_BYTES,
    allocate_together,
    return_freed_memory,
)

CPU = torch.device("cpu")


def test_tensors_that_are_allocated_together_share_one_storage() -> None:
    first, second = allocate_together([(3, 5), (7,)], torch.bfloat16, CPU)

    assert first.shape == (3, 5)
    assert second.shape == (7,)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_tensors_that_are_allocated_together_never_overlap() -> None:
    tensors = allocate_together([(3, 5), (7,), (1,)], torch.float32, CPU)

    for number, tensor in enumerate(tensors):
        tensor.fill_(number)

    assert [bool((t == n).all()) for n, t in enumerate(tensors)] == [True, True, True]


def test_every_tensor_starts_on_a_cache_line_of_the_allocation() -> None:
    tensors = allocate_together([(1,), (33,), (2, 2)], torch.float32, CPU)

    starts = [t.storage_offset() * t.element_size() for t in tensors]

    assert [start % ALIGNMENT_BYTES for start in starts] == [0, 0, 0]


def test_nothing_is_allocated_for_no_tensor() -> None:
    assert allocate_together([], torch.float32, CPU) == []


def test_freed_memory_is_the_hosts_again() -> None:
    # Too small for mappings of their own, so that the C library keeps them when they are freed.
    held = [torch.ones(4096) for _ in range(4000)]
    before = psutil.Process().memory_info().rss
    last = held[-1]
    del held
    return_freed_memory()
    assert psutil.Process().memory_info().rss < before - 32 * 2**20
    assert last[0] == 1
