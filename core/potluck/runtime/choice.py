"""Which engine suits a computer: of the release's locks, the one for its GPU, system and Python."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.markers import default_environment
from packaging.tags import sys_tags

import potluck
from potluck.errors import EngineError
from potluck.ids import Digest
from potluck.runtime.gpus import CUDA_13_DRIVER, nvidia_gpus, torch_variant
from potluck.runtime.lock import EngineLock, Environment, Wheel, digest_of_wheels, read_lock
from potluck.system.graphics import amd_targets

CUDA: Final = "cuda"  # CUDA 13, as the index `cu130`
CPU: Final = "cpu"
METAL: Final = "metal"
ROCM: Final = "rocm"  # ROCm 7.2, as the index `rocm7.2`
# What PyTorch 2.13 is built for there.
_ROCM_TARGETS: Final = frozenset(
    (
        *("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950"),  # for servers
        *("gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151"),
        *("gfx1200", "gfx1201"),
    )
)
_OLD_GPU: Final = f"Its NVIDIA GPU is not used: that needs driver {CUDA_13_DRIVER} or newer, and a GPU of 2018 or later."

_NOT_LISTED: Final = (
    "Its NVIDIA GPU is not used: this release lists no PyTorch with CUDA for this system and Python. A folder with its"
    " wheels is used so: potluck engine install --from FOLDER."
)
_NO_ROCM: Final = (
    "Its AMD GPU is not used: this release lists no PyTorch with ROCm for this system and Python. A folder with its"
    " wheels is used so: potluck engine install --from FOLDER."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the choice depends on. `gpus` is what `nvidia_gpus` found, `amd` what `amd_targets` did."""

    system: str
    processor: str
    gpus: str | None
    amd: tuple[str, ...] = ()
    environment: Environment

    @classmethod
    def of_this(cls) -> "Machine":
        """This computer, as it is now. It asks NVIDIA's tool, which may take seconds."""
        markers = {name: str(value) for name, value in default_environment().items()}
        return cls(
            system=platform.system(),
            processor=platform.machine(),
            gpus=nvidia_gpus(),
            amd=amd_targets(),
            environment=Environment(markers=markers, tags=tuple(sys_tags())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The engine for a computer.

    Attributes:
        variant: `cpu`, `cuda`, `metal` or `rocm`; `own`: the owner's own wheels.
        wheels: all that are unpacked.
        note: a sentence about what is not used; empty: there is none.
    """

    variant: str
    wheels: tuple[Wheel, ...]
    note: str = ""

    @property
    def digest(self) -> Digest:
        return digest_of_wheels(self.wheels)

    @property
    def nbytes(self) -> int:
        return sum(wheel.nbytes for wheel in self.wheels)

    @property
    def version(self) -> str:
        """Of torch."""
        return next(wheel.version for wheel in self.wheels if wheel.name == "torch")


def choose(locks: Mapping[str, EngineLock], machine: Machine) -> Choice:
    """Choose the engine for a computer.

    Raises:
        EngineError: there is none; the sentence says why.
    """
    if machine.system == "Darwin" and machine.processor != "arm64":
        raise EngineError(
            "There is no PyTorch for Macs with an Intel processor any more. This computer can use the models"
            " of your other computers, and lends nothing."
        )
    if machine.system == "Windows" and machine.processor != "AMD64":
        raise EngineError(
            "There is no PyTorch for Windows on Arm yet. This computer can use the models of your other"
            " computers, and lends nothing."
        )
    for variant in _variants(machine):
        lock = locks.get(variant)
        wheels = None if lock is None else lock.wheels_for(machine.environment)
        if wheels is not None:
            return Choice(variant=variant, wheels=wheels, note=_note(machine, variant))
    version = machine.environment.markers.get("python_full_version", "")
    raise EngineError(
        f"This release lists no engine for this computer ({machine.system}, {machine.processor}, Python {version})."
        " Install PyTorch in the Python of Potluck yourself, or use a folder with its wheels: potluck engine"
        " install --from FOLDER."
    )


def _variants(machine: Machine) -> Sequence[str]:
    if machine.system == "Darwin":
        return (METAL,)
    index = torch_variant(machine.system, machine.processor, machine.gpus)
    if index == "cu130":
        return (CUDA, CPU)
    return (ROCM, CPU) if _ROCM_TARGETS & set(machine.amd) else (CPU,)


def _note(machine: Machine, variant: str) -> str:
    """A sentence about a GPU that the engine does not use; empty: there is none."""
    index = torch_variant(machine.system, machine.processor, machine.gpus)
    if index == "cu130" and variant == CPU:
        return _NOT_LISTED
    if ROCM in _variants(machine) and variant == CPU:
        return _NO_ROCM
    return _OLD_GPU if index == "cu126" and variant == CPU else ""


def locks_folder() -> Path:
    """Folder of the locks that come with Potluck: in the package, or in the checkout."""
    package = Path(potluck.__file__).parent
    installed = package / "_assets" / "engine"
    return installed if installed.is_dir() else package.parent.parent / "assets" / "engine"


def read_locks(folder: Path) -> dict[str, EngineLock]:
    """The locks in a folder, by variant.

    Raises:
        IntegrityError: one of them is damaged.
    """
    locks = (read_lock(path.read_bytes()) for path in sorted(folder.glob("pylock.*.toml")))
    return {lock.variant: lock for lock in locks}
