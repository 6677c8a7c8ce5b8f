"""The CPU is always a device; memory is what is free now, less a reserve, within the limit."""

import psutil
import pytest
import torch

from potluck.engine.device import (
    GPU_RESERVE,
    Device,
    compute_capability,
    compute_dtype,
    cpu_name,
    find_device,
    find_devices,
    set_threads,
)
from potluck.errors import UsageError

GB = 10**9


def test_the_cpu_is_there_and_comes_last() -> None:
    device = find_devices()[-1]

    assert (device.kind, device.index) == ("cpu", 0)
    assert device.memory_total == psutil.virtual_memory().total
    assert 0 < device.memory_free <= device.memory_total
    assert device.torch_device == torch.device("cpu")


def test_the_processor_has_a_name() -> None:
    name = cpu_name()

    assert name
    assert name == name.strip()
    assert "\n" not in name


def test_one_device_can_be_asked_for() -> None:
    assert find_device("cpu").name == cpu_name()
    with pytest.raises(UsageError, match="cuda:7"):
        find_device("cuda", 7)


def make(kind: str = "cpu", *, total: int = 20 * GB, free: int = 15 * GB) -> Device:
    return Device(kind=kind, index=0, name="", memory_total=total, memory_free=free)  # type: ignore[arg-type]


def test_a_cpu_keeps_a_fifth_of_its_memory() -> None:
    assert make().lendable() == 11 * GB
    assert make(free=3 * GB).lendable() == 0


def test_a_gpu_keeps_a_fixed_reserve() -> None:
    assert make("cuda", total=24 * GB, free=20 * GB).lendable() == 20 * GB - GPU_RESERVE


def test_the_limit_of_the_user_counts_and_lends_nothing_that_is_not_there() -> None:
    assert make().lendable(limit=4 * GB) == 4 * GB
    assert make().lendable(limit=400 * GB) == 11 * GB


def test_what_our_own_stages_hold_is_ours_to_lend() -> None:
    assert make(free=9 * GB).lendable(in_use=6 * GB) == 11 * GB


def test_the_cpu_computes_both_schemes() -> None:
    cpu = torch.device("cpu")

    assert compute_dtype("f32", cpu) == torch.float32
    assert compute_dtype("bf16", cpu) in (torch.bfloat16, torch.float16)


def test_only_cuda_devices_have_a_compute_capability() -> None:
    assert compute_capability(torch.device("cpu")) is None
    assert compute_capability(torch.device("mps")) is None


def test_threads_are_as_many_as_cores_unless_told() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(1) == 1
        cores = psutil.cpu_count(logical=False) or 1
        assert 1 <= set_threads() <= cores
    finally:
        torch.set_num_threads(before)
