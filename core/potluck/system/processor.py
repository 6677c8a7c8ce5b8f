"""The processor: its instructions where LLVM does not ask the system for them, its cores, and its name."""

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from potluck.system.commands import Ask, ask

# Linux, include/uapi/linux/auxvec.h and arch/arm64/include/uapi/asm/hwcap.h: the entry and the bit in it.
_AUXILIARY: Final[Mapping[str, tuple[int, int]]] = {"dotprod": (16, 20), "i8mm": (26, 13)}
# Windows, winnt.h: the numbers of processor features. Older versions know none of the last and deny it.
_PROCESSOR_FEATURES: Final[Mapping[str, int]] = {"dotprod": 43, "i8mm": 66}


def arm_features(system: str = sys.platform, libraries: Any = ctypes) -> frozenset[str]:
    """Return what an arm64 processor has of `dotprod` and `i8mm`, as its system says.

    Args:
        system: as in `sys.platform`. On macOS the processor's name says it, and this is empty.
        libraries: the module `ctypes`.
    """
    if system == "win32":
        has = libraries.windll.kernel32.IsProcessorFeaturePresent
        return frozenset(name for name, number in _PROCESSOR_FEATURES.items() if has(number))
    get = getattr(libraries.CDLL(None), "getauxval", None) if system == "linux" else None
    if get is None:
        return frozenset()
    get.argtypes, get.restype = [ctypes.c_ulong], ctypes.c_ulong
    return frozenset(name for name, (entry, bit) in _AUXILIARY.items() if get(entry) >> bit & 1)


def usable_cores(system: str = sys.platform, ask: Ask = ask) -> int:
    """Return how many real cores this process may compute with, of those that are equally fast.

    Apple's efficiency cores are left out: they are slower, and who computes waits for the last thread.
    """
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if system == "darwin":
        fast = ask("sysctl", "-n", "hw.perflevel0.physicalcpu") or ""  # unknown on Macs of Intel
        return int(fast) if fast.strip().isdecimal() and int(fast) else cores
    if hasattr(os, "sched_getaffinity"):  # a container may own fewer than there are
        cores = min(cores, len(os.sched_getaffinity(0)))
    return cores


def cpu_name(system: str = sys.platform, ask: Ask = ask) -> str:
    """Return the processor's name as its maker writes it, or at least its architecture."""
    ways: dict[str, Callable[[], str]] = {
        "linux": lambda: _linux_name(Path("/proc/cpuinfo").read_text().splitlines()),
        "darwin": lambda: ask("sysctl", "-n", "machdep.cpu.brand_string") or "",
        "win32": _windows_name,
    }
    try:
        name = ways.get(system, platform.processor)()
    except OSError:
        name = ""
    return " ".join(name.split()) or platform.processor() or platform.machine()


def _linux_name(lines: Iterable[str]) -> str:
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):  # `Model` on a Raspberry Pi
            return value
    return ""


def _windows_name() -> str:
    if sys.platform != "win32":
        return ""
    import winreg  # exists on Windows alone

    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as processor:
        return str(winreg.QueryValueEx(processor, "ProcessorNameString")[0])
