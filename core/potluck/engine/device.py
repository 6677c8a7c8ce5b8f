"""The devices of this computer: which there are, what they have free, what they can compute.

Memory is asked for now, every time: other programs come and go. How much of it may be used is the
user's limit, less a reserve that keeps the computer usable. The limit is of the RAM, and of each GPU
that has memory of its own.
"""

import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil
import torch

from potluck.errors import UsageError
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme

logger = logging.getLogger(__name__)

Kind = Literal["cuda", "mps", "cpu"]

CPU_RESERVE = 0.2  # of all RAM: the desktop, a browser, our own processes
GPU_RESERVE = 1_500_000_000  # bytes: the desktop's windows, CUDA's own context and workspaces

_ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`kind` and `index` name it (`cuda:0`), `name` is for people. Memory in bytes, as of now."""

    kind: Kind
    index: int
    name: str
    memory_total: int
    memory_free: int
    parts: int = (
        1  # of a CPU that is offered as several devices: this is one, with as much of the RAM
    )
    is_beside_gpu: bool = False  # a CPU whose RAM a GPU has too, which comes first

    @property
    def torch_device(self) -> torch.device:
        return (
            torch.device(self.kind) if self.kind == "cpu" else torch.device(self.kind, self.index)
        )

    def now(self) -> "Device":
        """The same, as of now. Of a GPU this takes some of its memory, so ask of one that is used."""
        total, free = _MEMORY[self.kind](self.index)
        total, free = total // self.parts, free // self.parts
        return replace(self, memory_total=total, memory_free=free)

    def lendable(self, limit: int | None = None, *, in_use: int = 0) -> int:
        """Bytes that a model may take: what is free, less the reserve, within the user's limit.

        Args:
            limit: at most so many bytes in all; None: no limit of the user's.
            in_use: bytes that our own stages hold already, hence not free but ours.
        """
        reserve = GPU_RESERVE
        if self.kind != "cuda":
            reserve = int(self.memory_total * CPU_RESERVE)
        room = max(0, self.memory_free + in_use - reserve)
        if limit is None:
            return room
        # The GPU can have all of a limit that it shares; twice as much would be beyond it.
        return 0 if self.is_beside_gpu else min(room, limit // self.parts)


def find_devices(cpus: int = 1) -> list[Device]:
    """All devices of this computer, the best one first and the CPU last; it is always there.

    Args:
        cpus: the CPU is offered as so many devices, which share the RAM equally.

    Returns:
        Of the GPUs the first as it is now. Another one counts as free: to ask it would take some
        hundred megabytes of it, and it may be that nobody wants it. See `Device.now`. One that
        cannot be computed on is left out, with a note in the log.
    """
    gpus = [_cuda_device(index) for index in range(_cuda_count()) if _has_kernels(index)]
    if torch.backends.mps.is_available():
        gpus.append(_mps_device())
    return [*_answering(gpus), *(_cpu_device(index, cpus) for index in range(cpus))]


def find_device(kind: Kind, index: int = 0, *, cpus: int = 1) -> Device:
    """One device as it is now; the others are left alone.

    Raises:
        UsageError: this computer has no such device.
    """
    if kind == "cpu" and index < cpus:
        return _cpu_device(index, cpus)
    if kind == "cuda" and index < _cuda_count() and _has_kernels(index):
        return _cuda_device(index).now()
    if kind == "mps" and index == 0 and torch.backends.mps.is_available():
        return _mps_device().now()
    raise UsageError(f"This computer has no device {kind}:{index}.", kind=kind, index=index)


def use(device: torch.device) -> None:
    """Make this the thread's device: what names none must not go to the first GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def compute_dtype(scheme: Scheme, device: torch.device) -> torch.dtype:
    """What a scheme is computed in: 16 bits are bf16 where the device has it, else f16.

    Packed weights are multiplied with sums in f32 on a CPU, where nothing is gained by less.
    """
    match scheme:
        case "f32":
            return torch.float32
        case "f16":
            return torch.float16
        case _ if scheme in PACKED_SCHEMES and device.type == "cpu":
            return torch.float32
        case _:
            return torch.bfloat16 if _works(device, torch.bfloat16) else torch.float16


def cache_dtype(scheme: Scheme, device: torch.device, cache: Cache = "full") -> torch.dtype:
    """What keys and values are kept in: beside packed weights never more than 16 bits.

    int8 is for CPUs: a GPU would have to unpack the whole cache for each token.
    """
    if cache == "int8" and device.type == "cpu":
        return torch.int8
    if scheme in PACKED_SCHEMES and device.type == "cpu":
        return torch.float16
    return compute_dtype(scheme, device)


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Which instructions a CUDA device has, such as (8, 6); None: it is no CUDA device."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def set_threads(threads: int | None = None) -> int:
    """Compute with so many threads; None: as many as the processor has real cores.

    Two threads of one core share its arithmetic and its cache: more of them make a product slower.
    """
    torch.set_num_threads(max(1, threads or usable_cores()))
    return torch.get_num_threads()


@contextmanager
def computing_with(threads: int | None = None) -> Iterator[None]:
    """The same for a while, on the thread that calls; afterwards as many as before."""
    before = torch.get_num_threads()
    set_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Real cores that this process may use."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # a container may own fewer than there are
        cores = min(cores, len(os.sched_getaffinity(0)))
    return cores


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU has, when a call returns."""
    match device.type:
        case "cuda":
            torch.cuda.synchronize(device)
        case "mps":
            torch.mps.synchronize()
        case _:
            pass


def is_lost(device: torch.device) -> bool:
    """Whether this process can compute nothing on it any more.

    After a driver went to sleep, or a kernel wrote where it must not, CUDA answers every call with the
    same error. Only a new process helps.
    """
    try:
        synchronize(device)
    except RuntimeError as error:
        logger.error("device %s is lost: %s", device, error)
        return True
    return False


def _works(device: torch.device, dtype: torch.dtype) -> bool:
    """Try it: what a driver promises and what it does are two things."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return False  # emulated bf16 computes, but slower than f16
    try:
        x = torch.ones((2, 16), dtype=dtype, device=device)
        return torch.nn.functional.linear(x, x).sum().item() == 64.0
    except (RuntimeError, TypeError):
        return False


def _cuda_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_kernels(index: int) -> bool:
    """Whether torch was built for it. Of older GPUs all is known, and nothing can be computed."""
    built_for = torch.cuda.get_arch_list()  # such as sm_86, and compute_90 for what is newer
    if torch.version.hip or not built_for:
        return True
    major, minor = torch.cuda.get_device_capability(index)
    for architecture in built_for:
        kind, _, version = architecture.rstrip("af").partition("_")
        least = divmod(int(version), 10)
        if least <= (major, minor) and (kind == "compute" or least[0] == major):
            return True
    logger.warning(
        "a GPU is left out, since this torch has nothing for it device=cuda:%d"
        " compute_capability=%d.%d built_for=%s",
        index,
        major,
        minor,
        " ".join(built_for),
    )
    return False


def _answering(gpus: Sequence[Device]) -> list[Device]:
    """Without the first ones that cannot say what they have free; the first that can is as it is now."""
    for count, gpu in enumerate(gpus):
        try:
            return [gpu.now(), *gpus[count + 1 :]]
        except RuntimeError as error:
            # Another program has all of its memory, or it lost its driver.
            logger.warning("a GPU is left out device=%s reason=%s", gpu.torch_device, error)
    return []


def _cuda_device(index: int) -> Device:
    facts = torch.cuda.get_device_properties(index)  # asks the driver, and takes no memory
    total = facts.total_memory
    return Device(kind="cuda", index=index, name=facts.name, memory_total=total, memory_free=total)


def _mps_device() -> Device:
    total, free = _mps_memory(0)
    return Device(kind="mps", index=0, name=cpu_name(), memory_total=total, memory_free=free)


def _cpu_device(index: int, parts: int) -> Device:
    total, free = _ram(index)
    return Device(
        kind="cpu",
        index=index,
        name=cpu_name(),
        memory_total=total // parts,
        memory_free=free // parts,
        parts=parts,
        is_beside_gpu=torch.backends.mps.is_available(),
    )


def _cuda_memory(index: int) -> tuple[int, int]:
    free, total = torch.cuda.mem_get_info(index)
    return total, free


def _mps_memory(_: int) -> tuple[int, int]:
    # Apple's GPU shares the RAM; this is how much of it Metal wants to be asked for.
    total = torch.mps.recommended_max_memory()
    free = max(0, total - torch.mps.driver_allocated_memory())
    return total, min(free, psutil.virtual_memory().available)


def _ram(_: int) -> tuple[int, int]:
    """Beside a GPU that shares the RAM: what that leaves."""
    memory = psutil.virtual_memory()
    if not torch.backends.mps.is_available():
        return memory.total, memory.available
    total, free = _mps_memory(0)
    return max(0, memory.total - total), max(0, memory.available - free)


_MEMORY: Mapping[Kind, Callable[[int], tuple[int, int]]] = {
    "cuda": _cuda_memory,
    "mps": _mps_memory,
    "cpu": _ram,
}
"""Bytes in all and free, of the device with this index."""


def cpu_name() -> str:
    """The processor's name as its maker writes it, or at least its architecture."""
    ask: dict[str, Callable[[], str]] = {
        "linux": _linux_cpu_name,
        "darwin": lambda: _answer("sysctl", "-n", "machdep.cpu.brand_string"),
        "win32": _windows_cpu_name,
    }
    try:
        name = ask.get(sys.platform, platform.processor)()
    except (OSError, subprocess.SubprocessError):
        name = ""
    return " ".join(name.split()) or platform.processor() or platform.machine()


def _linux_cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):  # `Model` on a Raspberry Pi
            return value
    return ""


def _windows_cpu_name() -> str:
    if sys.platform != "win32":
        return ""
    import winreg  # exists on Windows alone

    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as processor:
        return str(winreg.QueryValueEx(processor, "ProcessorNameString")[0])


def _answer(*command: str) -> str:
    done = subprocess.run(  # noqa: S603  # our own words, nothing from outside
        command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True
    )
    return done.stdout
