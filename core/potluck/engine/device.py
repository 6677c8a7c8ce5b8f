"""The devices of this computer, their free memory, and what they can compute.

Free memory is asked for anew every time, since other programs start and end. A model may use what is
free, less a reserve that keeps the computer usable, within the user's limit. The limit holds for the RAM
and for each GPU that has memory of its own.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import psutil
import torch

from potluck.errors import UsageError
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme
from potluck.system.graphics import NO_MPS
from potluck.system.processor import cpu_name, usable_cores

logger = logging.getLogger(__name__)

Kind = Literal["cuda", "mps", "cpu"]

CPU_RESERVE = 0.2  # of all RAM: the desktop, a browser, our own processes
GPU_RESERVE = 1_500_000_000  # bytes: the desktop's windows, CUDA's own context and workspaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`kind` and `index` name it (`cuda:0`), `name` is for people. Memory in bytes, as of now."""

    kind: Kind
    index: int
    name: str
    memory_total: int
    memory_free: int
    parts: int = 1  # a CPU may be offered as several devices, each with such a part of the RAM
    is_beside_gpu: bool = False  # a CPU that shares its RAM with a GPU, which is preferred

    @property
    def torch_device(self) -> torch.device:
        return (
            torch.device(self.kind) if self.kind == "cpu" else torch.device(self.kind, self.index)
        )

    def now(self) -> "Device":
        """This device with its memory as of now. Asking takes memory of a GPU, so ask only one in use."""
        total, free = _MEMORY[self.kind](self.index)
        total, free = total // self.parts, free // self.parts
        return replace(self, memory_total=total, memory_free=free)

    def lendable(self, limit: int | None = None, *, in_use: int = 0) -> int:
        """Bytes that a model may use: what is free, less the reserve, within the user's limit.

        Args:
            limit: at most so many bytes in all; None: no limit of the user's.
            in_use: bytes that our own stages use already; they count as free.
        """
        reserve = GPU_RESERVE
        if self.kind != "cuda":
            reserve = int(self.memory_total * CPU_RESERVE)
        room = max(0, self.memory_free + in_use - reserve)
        if limit is None:
            return room
        # A GPU that shares the RAM may use the whole limit, so nothing of it is left for the CPU.
        return 0 if self.is_beside_gpu else min(room, limit // self.parts)


def find_devices(cpus: int = 1) -> list[Device]:
    """All devices of this computer, the best one first and the CPU last; it is always there.

    Args:
        cpus: as how many devices the CPU is offered; they share the RAM equally.

    Returns:
        The first GPU with its memory as of now. The other GPUs count as free, since asking would take
        some hundred megabytes of each, and perhaps nobody uses them: see `Device.now`. A GPU that
        torch cannot compute on is left out, with a line in the log.
    """
    gpus = [_cuda_device(index) for index in range(_cuda_count()) if _has_kernels(index)]
    if _has_mps():
        gpus.append(_mps_device())
    return [*_answering(gpus), *(_cpu_device(index, cpus) for index in range(cpus))]


def find_device(kind: Kind, index: int = 0, *, cpus: int = 1) -> Device:
    """One device with its memory as of now; the other devices are not asked.

    Raises:
        UsageError: this computer has no such device.
    """
    if kind == "cpu" and index < cpus:
        return _cpu_device(index, cpus)
    if kind == "cuda" and index < _cuda_count() and _has_kernels(index):
        return _cuda_device(index).now()
    if kind == "mps" and index == 0 and _has_mps():
        return _mps_device().now()
    raise UsageError(f"This computer has no device {kind}:{index}.", kind=kind, index=index)


def use(device: torch.device) -> None:
    """Make this the thread's device, so that calls without a device do not use the first GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def compute_dtype(
    scheme: Scheme, device: torch.device, *, exceeds_f16: bool = False
) -> torch.dtype:
    """The dtype of hidden states, and of weights that are not packed.

    16 bits are bf16 where the device is fast with it, else f16. Packed weights on a CPU are multiplied
    with sums in f32, where 16 bits would gain nothing.

    Args:
        scheme: the scheme of the weights.
        device: the device that computes.
        exceeds_f16: whether the model's hidden states are beyond the numbers of f16. Then bf16 is taken,
            also in scheme f16 and where the device only emulates it, and f32 where it has none at all.
    """
    match scheme:
        case "f32":
            return torch.float32
        case "f16" if not exceeds_f16:
            return torch.float16
        case _ if scheme in PACKED_SCHEMES and device.type == "cpu":
            return torch.float32
        case _ if _computes(device, torch.bfloat16, emulated=exceeds_f16):
            return torch.bfloat16
        case _:
            return torch.float32 if exceeds_f16 else torch.float16


def cache_dtype(
    scheme: Scheme, device: torch.device, cache: Cache = "full", *, exceeds_f16: bool = False
) -> torch.dtype:
    """The dtype of keys and values: beside packed weights never more than 16 bits on a CPU.

    int8 is for CPUs: a GPU would have to unpack the whole cache for each token.
    """
    if cache == "int8" and device.type == "cpu":
        return torch.int8
    if scheme in PACKED_SCHEMES and device.type == "cpu":
        return torch.float16
    return compute_dtype(scheme, device, exceeds_f16=exceeds_f16)


@dataclass(frozen=True, slots=True)
class CacheForm:
    """How keys and values are held, and how attention multiplies them."""

    dtype: torch.dtype
    beside_packed: bool = False  # whether the weights are packed

    @property
    def has_pairs(self) -> bool:
        """Whether they are rounded to bf16, of which a processor may multiply two at a time.

        Packed weights are multiplied with 8 bits of hidden states, so that this loses nothing beside them.
        """
        return self.beside_packed and self.dtype == torch.float16


def is_wide(
    scheme: Scheme, device: torch.device, cache: Cache = "full", *, exceeds_f16: bool = False
) -> bool:
    """Whether keys and values take 32 bits: in f32, or because the device has no bf16 for a model beyond f16."""
    return cache_dtype(scheme, device, cache, exceeds_f16=exceeds_f16) == torch.float32


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of a CUDA device, such as (8, 6); None for other devices."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def set_threads(threads: int | None = None) -> int:
    """Compute with so many threads, and return their number; None: as many as there are real cores.

    Two threads on one core share its arithmetic and its cache, which makes a product slower.
    """
    torch.set_num_threads(max(1, threads or usable_cores()))
    return torch.get_num_threads()


@contextmanager
def computing_with(threads: int | None = None) -> Iterator[None]:
    """`set_threads` inside the block, on the calling thread; afterwards there are as many as before."""
    before = torch.get_num_threads()
    set_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; on a CPU, calls return when they have."""
    match device.type:
        case "cuda":
            torch.cuda.synchronize(device)
        case "mps":
            torch.mps.synchronize()
        case _:
            pass


def is_lost(device: torch.device) -> bool:
    """Whether this process cannot use the device any more.

    After the driver slept, or a kernel wrote to a wrong address, CUDA answers every call with the same
    error. Only a new process helps.
    """
    try:
        synchronize(device)
    except RuntimeError as error:
        logger.error("device %s is lost: %s", device, error)
        return True
    return False


def _computes(device: torch.device, dtype: torch.dtype, *, emulated: bool) -> bool:
    """Whether the device multiplies numbers of this dtype, tried there: a driver may promise too much.

    A GPU that only emulates bf16 is slower with it than with f16; it counts if `emulated` says so.
    """
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=emulated):
        return False
    try:
        x = torch.ones((2, 16), dtype=dtype, device=device)
        return torch.nn.functional.linear(x, x).sum().item() == 64.0
    except (RuntimeError, TypeError):
        return False


def _has_mps() -> bool:
    """Whether Apple's GPU is there, and may be used."""
    return NO_MPS not in os.environ and torch.backends.mps.is_available()


def _cuda_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_kernels(index: int) -> bool:
    """Whether torch was built for this GPU. Older GPUs are listed, but nothing can run on them."""
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
    """Drop GPUs from the front that cannot tell their memory; the first that can has it as of now."""
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
        is_beside_gpu=_has_mps(),
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
    """Total and free bytes of the RAM, without the part that a GPU on shared memory uses."""
    memory = psutil.virtual_memory()
    if not _has_mps():
        return memory.total, memory.available
    total, free = _mps_memory(0)
    return max(0, memory.total - total), max(0, memory.available - free)


_MEMORY: Mapping[Kind, Callable[[int], tuple[int, int]]] = {
    "cuda": _cuda_memory,
    "mps": _mps_memory,
    "cpu": _ram,
}
"""The total and free bytes of the device with this index."""
