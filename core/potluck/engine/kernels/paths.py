"""Which instructions the kernels may use: one path for each kind of processor.

A path is compiled for a named level of processors, not for the host's every feature, so that what was
tested is what runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from llvmlite import binding

from potluck.system.processor import arm_features

_X86_64_V3 = frozenset({"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"})
_X86_64_V4 = _X86_64_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# LLVM names a Mac's processor where it does not list its features.
_APPLE = {"apple-m1": {"dotprod"}, "apple-m": {"dotprod", "i8mm"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How to compile for processors that have these features."""

    name: str
    architecture: str  # "" for any
    needs: frozenset[str]  # as LLVM names them
    cpu: str
    features: str = ""
    dot: Literal["vnni512", "vnni256", "avx2", "usdot", "sdot", "plain"]  # see `dots`
    tokens: int  # whose products are computed at once; the fastest number, as measured
    registers: int = 8  # how many vectors of 16 f32 the registers hold
    half_in_hardware: bool = True  # whether instructions convert f16
    # Whether products prefetch what they read soon, rather than far ahead. A Zen 2, with AVX2 alone, is faster so; a
    # Xeon with AVX-512 VNNI is not, and nothing with AVX-VNNI was measured.
    reads_near: bool = False
    fuses: bool = True  # whether an instruction multiplies and adds with one rounding
    # Whether an instruction adds two products of bf16, with two roundings: `vdpbf16ps`. `bfdot` rounds otherwise.
    multiplies_bf16: bool = False


ARITHMETIC: Mapping[str, frozenset[str]] = {
    "bf16": frozenset({"amx-bf16", "avx512bf16", "bf16"}),
    "f16": frozenset({"amx-fp16", "avx512fp16", "fullfp16"}),
}
"""The features of which one is needed to multiply numbers of 16 bits as they are, as LLVM names them."""

# Best first.
PATHS = (
    Path(
        name="avx512bf16",
        architecture="x86_64",
        needs=_X86_64_V4 | {"avx512vnni", "avx512bf16"},
        cpu="x86-64-v4",
        features="+avx512vnni,+avx512bf16,-prefer-256-bit",
        dot="vnni512",
        tokens=8,
        registers=32,
        multiplies_bf16=True,
    ),
    Path(
        name="avx512vnni",
        architecture="x86_64",
        needs=_X86_64_V4 | {"avx512vnni"},
        cpu="x86-64-v4",
        features="+avx512vnni,-prefer-256-bit",
        dot="vnni512",
        tokens=8,
        registers=32,
    ),
    Path(
        name="avxvnni",
        architecture="x86_64",
        needs=_X86_64_V3 | {"avxvnni"},
        cpu="x86-64-v3",
        features="+avxvnni",
        dot="vnni256",
        tokens=4,
    ),
    Path(
        name="avx2",
        architecture="x86_64",
        needs=_X86_64_V3,
        cpu="x86-64-v3",
        dot="avx2",
        tokens=8,
        reads_near=True,
    ),
    Path(
        name="i8mm",
        architecture="aarch64",
        needs=frozenset({"dotprod", "i8mm"}),
        cpu="generic",
        features="+dotprod,+i8mm",
        dot="usdot",
        tokens=4,
    ),
    Path(
        name="dotprod",
        architecture="aarch64",
        needs=frozenset({"dotprod"}),
        cpu="generic",
        features="+dotprod",
        dot="sdot",
        tokens=4,
    ),
    Path(
        name="neon",
        architecture="aarch64",
        needs=frozenset(),
        cpu="generic",
        dot="plain",
        tokens=1,
    ),
    Path(
        name="generic",
        architecture="",
        needs=frozenset(),
        cpu="",
        dot="plain",
        tokens=1,
        registers=4,
        half_in_hardware=False,
        fuses=False,
    ),
)


def host_features() -> frozenset[str]:
    """Return the features of the host's processor, as LLVM names them."""
    features = {name for name, has in binding.get_host_cpu_features().items() if has}
    cpu = binding.get_host_cpu_name()
    features |= next((more for name, more in _APPLE.items() if cpu.startswith(name)), set())
    if host_architecture() == "aarch64":
        features |= arm_features()
    return frozenset(map(str, features))


def host_architecture() -> str:
    """Return the host's architecture as LLVM names it: x86_64, aarch64."""
    name = binding.get_process_triple().split("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


def host_triple() -> str:
    """Return the target to compile for. On Windows its objects are ELF, which LLVM's loader knows best."""
    triple = binding.get_process_triple()
    return f"{triple}-elf" if "windows" in triple and not triple.endswith("-elf") else triple


def usable_paths(architecture: str, features: Iterable[str]) -> list[Path]:
    """Return the paths that such a processor can run, best first; the last one runs anywhere."""
    has = frozenset(features)
    return [path for path in PATHS if path.architecture in ("", architecture) and path.needs <= has]
