"""The CPU is always a device; memory is what is free now, less a reserve, within the limit."""

from types import SimpleNamespace

import psutil
import pytest
import torch

from potluck.engine import device as device_module
from potluck.engine.device import (
    GPU_RESERVE,
    Device,
    cache_dtype,
    compute_capability,
    compute_dtype,
    computing_with,
    find_device,
    find_devices,
    is_lost,
    set_threads,
    use,
)
from potluck.errors import UsageError
from potluck.model.schemes import Scheme
from potluck.system.graphics import NO_MPS
from potluck.system.processor import cpu_name

GB = 10**9


def test_the_cpu_is_there_and_comes_last() -> None:
    device = find_devices()[-1]

    assert (device.kind, device.index) == ("cpu", 0)
    assert device.memory_total == psutil.virtual_memory().total
    assert 0 < device.memory_free <= device.memory_total
    assert device.torch_device == torch.device("cpu")


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


@pytest.mark.parametrize(
    ("bf16", "plain", "beyond_f16"),
    [
        ("fast", torch.bfloat16, torch.bfloat16),
        ("emulated", torch.float16, torch.bfloat16),
        ("missing", torch.float16, torch.float32),
    ],
)
@pytest.mark.parametrize("scheme", ["bf16", "int4"])
def test_a_model_beyond_f16_is_never_computed_in_it(
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme,
    bf16: str,
    plain: torch.dtype,
    beyond_f16: torch.dtype,
) -> None:
    def computes(device: torch.device, dtype: torch.dtype, *, emulated: bool) -> bool:
        return bf16 == "fast" or (emulated and bf16 == "emulated")

    monkeypatch.setattr(device_module, "_computes", computes)
    gpu = torch.device("cuda", 0)

    for choose in (compute_dtype, cache_dtype):
        assert choose(scheme, gpu) == plain
        assert choose(scheme, gpu, exceeds_f16=True) == beyond_f16


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_a_model_beyond_f16_is_computed_in_bf16_also_if_f16_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(device_module, "_computes", lambda *_, **__: True)
    where = torch.device(device)

    for choose in (compute_dtype, cache_dtype):
        assert choose("f16", where) == torch.float16
        assert choose("f16", where, exceeds_f16=True) == torch.bfloat16


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


def test_threads_for_a_while_are_as_many_as_before_afterwards() -> None:
    before = torch.get_num_threads()

    with computing_with(before + 1):
        assert torch.get_num_threads() == before + 1

    assert torch.get_num_threads() == before


# --- computers that are not here


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A computer with two of CUDA's; the list is of those whose memory was asked for."""
    asked: list[int] = []

    def mem_get_info(index: int) -> tuple[int, int]:
        asked.append(index)
        return 20 * GB, 24 * GB

    facts = SimpleNamespace(name="GPU", total_memory=24 * GB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_86", "sm_90a"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    return asked


def test_only_the_first_gpu_is_asked_for_its_memory(two_gpus: list[int]) -> None:
    found = find_devices()

    assert [(d.kind, d.index) for d in found] == [("cuda", 0), ("cuda", 1), ("cpu", 0)]
    assert [d.memory_free for d in found[:2]] == [20 * GB, 24 * GB]
    assert two_gpus == [0]


def test_the_process_of_a_device_leaves_the_others_alone(two_gpus: list[int]) -> None:
    assert find_device("cpu").kind == "cpu"
    assert two_gpus == []
    second = find_device("cuda", 1)
    assert (second.memory_free, second.torch_device) == (20 * GB, torch.device("cuda", 1))
    assert two_gpus == [1]


@pytest.mark.parametrize(
    ("capability", "built_for", "is_usable"),
    [
        ((6, 1), "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", False),  # Pascal, torch 2.13
        ((7, 0), "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", False),
        ((7, 5), "sm_75 sm_80", True),
        ((8, 9), "sm_75 sm_86 sm_90a", True),
        ((12, 1), "sm_90 sm_120", True),
        ((13, 0), "sm_90 sm_120 compute_120", True),
        ((13, 0), "sm_90 sm_120f", False),
        ((6, 1), "", True),  # nothing is said
    ],
)
def test_a_gpu_that_torch_was_not_built_for_is_left_out(
    two_gpus: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capability: tuple[int, int],
    built_for: str,
    is_usable: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_arch_list", built_for.split)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda index: (8, 6) if index else capability
    )
    if "sm_86" not in built_for:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    found = find_devices()

    assert ((found[0].kind, found[0].index) == ("cuda", 0)) is is_usable
    assert ("left out" in caplog.text) is not is_usable
    if not is_usable:
        with pytest.raises(UsageError, match="cuda:0"):
            find_device("cuda", 0)


def test_a_gpu_that_does_not_answer_is_left_out(
    two_gpus: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mem_get_info(index: int) -> tuple[int, int]:
        if index == 0:
            raise RuntimeError("CUDA error: out of memory")
        return 5 * GB, 24 * GB

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)

    found = find_devices()

    assert [(d.kind, d.index) for d in found] == [("cuda", 1), ("cpu", 0)]
    assert found[0].memory_free == 5 * GB
    assert "device=cuda:0 reason=CUDA error: out of memory" in caplog.text


def test_a_gpu_is_made_the_one_that_a_thread_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", used.append)

    use(torch.device("cpu"))
    use(torch.device("cuda", 1))

    assert used == [torch.device("cuda", 1)]


def test_a_gpu_that_answers_no_call_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[torch.device] = []

    def synchronize(device: torch.device) -> None:
        asked.append(device)
        if device.index == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)

    lost = [is_lost(torch.device("cuda", index)) for index in (0, 1)]

    assert lost == [False, True]
    assert not is_lost(torch.device("cpu"))
    assert len(asked) == 2
    assert "cuda:1 is lost: CUDA error" in caplog.text


def test_beside_apples_gpu_the_cpu_lends_what_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=32 * GB, available=26 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 22 * GB)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 0)

    gpu, cpu = find_devices()
    assert (gpu.kind, gpu.memory_free, cpu.memory_total, cpu.memory_free) == (
        "mps", 22 * GB, 10 * GB, 4 * GB,
    )  # fmt: skip
    assert cpu.lendable() == 2 * GB
    assert cpu.lendable(8 * GB) == 0  # the limit is the GPU's, which has the same RAM
    memory.available = 12 * GB
    assert gpu.now().memory_free == 12 * GB
    assert cpu.now().memory_free == 0


def test_apples_gpu_may_be_hidden_and_the_cpu_has_all_of_the_ram_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(total=32 * GB, available=GB)
    )
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setenv(NO_MPS, "1")

    (cpu,) = find_devices()
    assert (cpu.kind, cpu.memory_total, cpu.is_beside_gpu) == ("cpu", 32 * GB, False)
    with pytest.raises(UsageError, match="no device mps"):
        find_device("mps")
