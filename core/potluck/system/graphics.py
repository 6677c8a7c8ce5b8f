"""The GPUs of this computer, and the variables by which a process sees only some of them.

Drivers are asked by programs and files of theirs, never by loading them: a driver that crashes takes nothing of ours with
it, and a GPU that is not to be used is not touched.
"""

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from potluck.system.commands import Ask, ask
from potluck.system.processor import cpu_name

NO_MPS: Final = "POTLUCK_NO_MPS"  # set: Apple's GPU is not used
Maker: TypeAlias = Literal["nvidia", "amd", "apple"]

_NVIDIA_S: Final = 10.0  # a driver that starts takes seconds for each GPU
_UUID: Final = re.compile(r"GPU-[0-9a-f-]{1,64}")
_AMD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")  # of AMD's driver for computing
_AMD_NAME: Final = "AMD-"
_NONE: Final = "-1"  # as a list of GPUs: no GPU has this number


class Gpu(NamedTuple):
    """A GPU. Its id stays what it is when others come and go, as far as its maker gives it one."""

    maker: Maker
    id: str  # begins with the maker
    name: str  # for people; no two have the same
    selector: str  # as the maker's programs are told which GPUs to use


def find_gpus(
    ask: Ask = ask,
    environ: Mapping[str, str] = os.environ,
    *,
    amd_nodes: Path = _AMD_NODES,
    system: str = sys.platform,
    machine: Callable[[], str] = platform.machine,
) -> tuple[Gpu, ...]:
    """Find the GPUs that may be used or not. It takes up to seconds.

    Where a variable of the maker says already which GPUs programs see, that holds, and those GPUs are left out.
    """
    found: list[Gpu] = []
    if not environ.keys() & _VARIABLES["nvidia"]:
        found += _nvidia(ask)
    if not environ.keys() & _VARIABLES["amd"]:
        found += _amd(amd_nodes)
    if system == "darwin" and machine() == "arm64" and NO_MPS not in environ:
        found.append(Gpu("apple", "apple:mps", cpu_name(), "mps"))
    return tuple(_with_names_apart(found))


def amd_targets(nodes: Path = _AMD_NODES) -> tuple[str, ...]:
    """What programs are compiled for to run on the GPUs of AMD's driver: `gfx1101`."""
    return tuple(gpu.name.removeprefix(_AMD_NAME) for gpu in _amd(nodes))


def hiding(
    gpus: Sequence[Gpu], off: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables of a process that is to see all GPUs but some.

    Where a maker's GPUs cannot be told apart now, since its driver does not answer, all of them are hidden. What a
    variable of the maker says already holds.

    Args:
        gpus: all that there are.
        off: ids of those to hide; they need not be there.
        environ: the variables that the process gets anyway.
    """
    hidden, variables = frozenset(off), dict[str, str]()
    for maker, hide in _HIDE.items():
        here = [gpu for gpu in gpus if gpu.maker == maker]
        seen = [gpu.selector for gpu in here if gpu.id not in hidden]
        is_asked = any(gpu.startswith(f"{maker}:") for gpu in hidden)
        is_asked = is_asked and not environ.keys() & _VARIABLES[maker]
        if is_asked and (not here or len(seen) < len(here)):
            variables |= hide(seen)
    return variables


def _nvidia(ask: Ask) -> Iterator[Gpu]:
    query = ("nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader")
    for line in (ask(*query, deadline_s=_NVIDIA_S) or "").splitlines():
        uuid, _, name = (part.strip() for part in line.partition(","))
        if _UUID.fullmatch(uuid):
            yield Gpu("nvidia", f"nvidia:{uuid}", name or "NVIDIA GPU", uuid)


def _amd(nodes: Path) -> Iterator[Gpu]:
    """The GPUs in the order in which AMD's runtime numbers them. Processors are nodes without SIMD units."""
    folders = sorted((n for n in nodes.glob("*") if n.name.isdecimal()), key=lambda n: int(n.name))
    number = 0
    for folder in folders:
        facts = _facts(folder / "properties")
        if not facts.get("simd_count"):
            continue
        unique = facts.get("unique_id")  # 0 where the hardware has none
        version = facts.get("gfx_target_version", 0)  # 110001: gfx1101
        major, minor, step = version // 10000, version // 100 % 100, version % 100
        name = f"{_AMD_NAME}gfx{major}{minor:x}{step:x}"  # the driver knows no other name
        yield Gpu("amd", f"amd:{unique:016x}" if unique else f"amd:{number}", name, str(number))
        number += 1


def _facts(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {two[0]: int(two[1]) for two in words if len(two) == 2 and two[1].isdecimal()}


def _with_names_apart(gpus: Iterable[Gpu]) -> Iterator[Gpu]:
    counts = Counter[str]()
    for gpu in gpus:
        counts[gpu.name] += 1
        count = counts[gpu.name]
        yield gpu if count == 1 else gpu._replace(name=f"{gpu.name} ({count})")


def _hide_nvidia(seen: Sequence[str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(seen) or _NONE}


def _hide_amd(seen: Sequence[str]) -> dict[str, str]:
    """AMD's runtime hides GPUs, and numbers the rest anew. HIP would hide more by what is meant for NVIDIA's."""
    numbers = ",".join(str(number) for number in range(len(seen)))
    return {
        "ROCR_VISIBLE_DEVICES": ",".join(seen) or _NONE,
        "HIP_VISIBLE_DEVICES": numbers or _NONE,
    }


def _hide_apple(_: Sequence[str]) -> dict[str, str]:
    return {NO_MPS: "1"}


_HIDE: Final[Mapping[Maker, Callable[[Sequence[str]], dict[str, str]]]] = {
    "nvidia": _hide_nvidia,
    "amd": _hide_amd,
    "apple": _hide_apple,
}
_VARIABLES: Final[Mapping[Maker, frozenset[str]]] = {
    "nvidia": frozenset({"CUDA_VISIBLE_DEVICES"}),
    "amd": frozenset({"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}),
    "apple": frozenset({NO_MPS}),
}
