"""What is lent of a made-up computer: nothing here has a GPU."""

from dataclasses import replace

import pytest
import torch

from potluck.engine import device as device_module
from potluck.engine.device import GPU_RESERVE, Device, find_devices
from potluck.engine.lending import Lending
from potluck.errors import UsageError
from potluck.wire.messages import DeviceId

GB = 10**9
GPU = Device(kind="cuda", index=0, name="GPU", memory_total=24 * GB, memory_free=20 * GB)
OTHER_GPU = replace(GPU, index=1, memory_total=8 * GB, memory_free=8 * GB)
CPU = Device(kind="cpu", index=0, name="CPU", memory_total=50 * GB, memory_free=30 * GB)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """The memory of the devices as of now, as (all, free)."""
    now = {"cuda": (24 * GB, 20 * GB), "cpu": (50 * GB, 30 * GB)}
    ask = {kind: lambda _, kind=kind: now[kind] for kind in now}
    monkeypatch.setattr(device_module, "_MEMORY", ask)
    return now


def test_the_best_devices_process_tells_what_all_lend(memory: dict[str, tuple[int, int]]) -> None:
    lending = Lending(find=lambda _: [GPU, OTHER_GPU, CPU])

    assert [d.id for d in lending.all()] == [
        DeviceId(kind="cuda"), DeviceId(kind="cuda", index=1), DeviceId(kind="cpu"),
    ]  # fmt: skip
    memory["cuda"], memory["cpu"] = (24 * GB, 10 * GB), (50 * GB, 12 * GB)
    assert [d.memory_free for d in lending.all(in_use=3 * GB)] == [
        13 * GB - GPU_RESERVE,
        8 * GB - GPU_RESERVE,  # nobody has asked it, which would take some of it
        2 * GB,
    ]
    assert lending.torch_device == torch.device("cuda", 0)


def test_a_limit_is_of_the_ram_and_of_each_gpu() -> None:
    lending = Lending(limit=5 * GB, find=lambda _: [GPU, CPU])
    assert [d.memory_free for d in lending.all()] == [5 * GB, 5 * GB]
    lending.limit = None
    assert [d.memory_free for d in lending.all()] == [20 * GB - GPU_RESERVE, 20 * GB]


def test_a_gpu_that_has_the_same_ram_takes_all_of_a_limit() -> None:
    shared = replace(CPU, is_beside_gpu=True)
    assert shared.lendable() == 20 * GB
    assert shared.lendable(5 * GB) == 0


def test_a_cpu_that_is_several_devices_shares_its_ram_and_its_limit() -> None:
    lending = Lending(cpus=(2, 3))
    first, second = lending.all()

    assert (first.index, second.index) == (0, 1)
    assert (first.memory_total, first.memory_free) == (25 * GB, 10 * GB)
    lending.limit = 6 * GB
    assert [d.memory_free for d in lending.all()] == [3 * GB, 3 * GB]
    assert lending.threads == 2
    assert lending.torch_device == torch.device("cpu")


def test_the_process_of_one_device_knows_of_no_other() -> None:
    lending = Lending(DeviceId(kind="cpu", index=1), cpus=(2, 3))
    assert [d.id for d in lending.all()] == [DeviceId(kind="cpu", index=1)]
    assert lending.threads == 3
    assert Lending(DeviceId(kind="cpu")).threads is None


@pytest.mark.parametrize("device", [DeviceId(kind="cpu", index=2), DeviceId(kind="cuda", index=9)])
def test_a_device_that_is_not_there_is_an_error(device: DeviceId) -> None:
    with pytest.raises(UsageError, match="no device"):
        Lending(device, cpus=(1, 1))


def test_the_parts_of_a_cpu_are_found_after_everything_else() -> None:
    assert [d.index for d in find_devices(3)[-3:]] == [0, 1, 2]
