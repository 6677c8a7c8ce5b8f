"""A device without memory is told apart from every other failure."""

import ctypes
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from potluck.engine.memory import out_of_memory, release, release_prompt
from potluck.errors import OutOfMemoryError

CPU = torch.device("cpu")


def test_an_allocation_that_fails_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemoryError, match="think"), out_of_memory("think", CPU):
        torch.empty(1 << 60)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory."),
        RuntimeError("MPS backend out of memory (MPS allocated: 5.2 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Invalid buffer size: 24.00 GiB"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_torch_raises_elsewhere_is_too(error: Exception) -> None:
    with pytest.raises(OutOfMemoryError), out_of_memory("think", CPU):
        raise error


def test_what_was_allocated_is_free_before_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else there is nothing to give back: whoever asks what is free is told that all is in use."""
    held: list[weakref.ref[torch.Tensor]] = []
    found: list[bool] = []

    def load() -> None:
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append(held[0]() is None))

    with pytest.raises(OutOfMemoryError), out_of_memory("think", torch.device("cuda", 0)):
        load()
    assert found == [True]


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), out_of_memory("think", CPU):
        raise RuntimeError("shape mismatch")


def test_memory_that_cannot_be_given_back_does_not_hide_what_happened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:  # as torch 2.11 does for good once a capture has failed
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)

    with pytest.raises(OutOfMemoryError), out_of_memory("think", torch.device("cuda", 0)):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert "captures_underway" in caplog.text


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_gpu_gives_memory_back_when_it_has_none_left_and_not_after_each_prompt(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    given_back: list[str] = []
    for name in ("cuda", "mps"):
        backend = getattr(torch, name)
        monkeypatch.setattr(backend, "empty_cache", lambda name=name: given_back.append(name))

    release_prompt(torch.device(device))
    assert given_back == []
    release(torch.device(device))
    assert given_back == [device]


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
@pytest.mark.parametrize("give_back", [release, release_prompt])
def test_memory_that_was_freed_between_what_is_kept_is_given_back(
    give_back: Callable[[torch.device], None],
) -> None:
    pieces = [bytearray(100_000) for _ in range(1000)]  # each too small for a mapping of its own
    kept = pieces[::10]
    before = resident()
    del pieces
    give_back(CPU)

    assert resident() < before - 50_000_000
    assert len(kept) == 100


def test_a_c_library_that_cannot_give_memory_back_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())  # as musl is
    release(CPU)

    def refuse(
        _: object,
    ) -> None:  # as Windows does, where nothing is what a program is linked with
        raise TypeError("argument of type 'NoneType' is not iterable")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(sys, "platform", "win32")
    release(CPU)


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
