"""A folder with an arm64 Debian, the aarch64 wheels of what the engine needs, and qemu in front of both.

Nothing in it is installed, only unpacked: a program in it is run by `qemu-aarch64-static -L`, so that the host
needs neither a chroot nor a handler of foreign programs (binfmt).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
QEMU = "qemu-aarch64-static"

# Processors that have what the kernels' paths need, and no more. qemu emulates SVE and pointer signing slowly.
PROCESSORS: Mapping[str, str] = {
    "neon": "cortex-a72",
    "dotprod": "neoverse-n1",
    "i8mm": "max,sve=off,pauth=off",
}
"""By the name of the path that each has to take: qemu's name of the processor."""

_SUITE = "bookworm"  # its Python is 3.11, the oldest that Potluck supports
_PYTHON = "3.11"
_DEBIAN = ("python3", "libgomp1", "libstdc++6")
_PLATFORMS = tuple(
    f"manylinux{tag}_aarch64" for tag in ("_2_34", "_2_28", "_2_27", "_2_17", "2014")
)
# Newer builds of torch on PyPI bring CUDA, and 3 GB of it.
_TORCH = "torch==2.9.1"
_PACKAGES = (
    *("numpy", "llvmlite", "msgspec", "msgpack", "psutil", "platformdirs"),  # Potluck's own
    *("filelock", "fsspec", "jinja2", "MarkupSafe", "mpmath", "networkx", "sympy"),  # torch's
    *("pytest", "pytest-timeout", "iniconfig", "packaging", "pluggy", "pygments"),
    *("hypothesis", "sortedcontainers"),
    *("transformers", "tokenizers", "safetensors", "huggingface_hub", "regex", "pyyaml", "tqdm"),
    *("gguf",),  # what its tests compare with
    *("typer", "click", "httpx2", "httpcore2", "h11", "anyio", "idna", "sniffio", "truststore"),
    "typing_extensions",
)
# qemu before 8 shows the host's processor, where a program expects that of its own kind.
_CPUINFO = "processor\t: 0\nBogoMIPS\t: 100.00\nCPU architecture: 8\n\n"


class SetupError(Exception):
    """The folder cannot be made; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Root:
    """The folder, and how programs in it are run.

    Attributes:
        folder: `debian` and `site` are in it.
    """

    folder: Path

    @property
    def debian(self) -> Path:
        return self.folder / "debian"

    @property
    def site(self) -> Path:
        return self.folder / "site"

    def make(self) -> None:
        """Make what is missing: some 300 MB are downloaded.

        Raises:
            SetupError: a program that is needed is missing, or failed.
        """
        if missing := [
            tool for tool in (QEMU, "debootstrap", "dpkg-deb") if not shutil.which(tool)
        ]:
            raise SetupError(
                f"{' and '.join(missing)} cannot be found. On Debian:"
                " apt-get install debootstrap qemu-user-static"
            )
        _make(self.debian, _unpack_debian, _DEBIAN)
        _make(self.site, _download_wheels, (_TORCH, *_PACKAGES))

    def python(self, processor: str, words: Sequence[str | Path], **environ: str) -> list[str]:
        """The command that runs the arm64 Python with these words on such a processor of `PROCESSORS`."""
        settings = {
            "PYTHONPATH": with_sources(self.site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **environ,
        }
        return [
            *("env", *(f"{name}={value}" for name, value in settings.items())),
            *(QEMU, "-cpu", PROCESSORS[processor], "-L", str(self.debian)),
            str(self.debian / "usr/bin" / f"python{_PYTHON}"),
            *map(str, words),
        ]


def with_sources(*paths: Path) -> str:
    """These paths and those of the sources, as PYTHONPATH has them."""
    sources = (CHECKOUT / part for part in ("core", "app", "tests", "tests/support"))
    return os.pathsep.join(map(str, (*paths, *sources)))


def _make(folder: Path, fill: Callable[[Path], None], names: Sequence[str]) -> None:
    """Fill a folder that is missing, or that was made of other packages; half a one is not left behind."""
    listed, wanted = folder.with_name(f"{folder.name}.txt"), "\n".join(names)
    if folder.exists() and listed.exists() and listed.read_text() == wanted:
        return
    half = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    fill(half)
    shutil.rmtree(folder, ignore_errors=True)
    half.replace(folder)
    listed.write_text(wanted)


def _unpack_debian(folder: Path) -> None:
    # The second stage would run the packages' scripts by binfmt. Nothing here needs what they do.
    options = ("--foreign", "--arch=arm64", "--variant=minbase", f"--include={','.join(_DEBIAN)}")
    _run("debootstrap", *options, _SUITE, folder)
    for archive in sorted((folder / "var/cache/apt/archives").glob("*.deb")):
        _run("dpkg-deb", "-x", archive, folder)
        archive.unlink()
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc/cpuinfo").write_text(_CPUINFO)


def _download_wheels(folder: Path) -> None:
    tags = [word for tag in _PLATFORMS for word in ("--platform", tag)]
    tags += [word for abi in ("cp311", "abi3", "none") for word in ("--abi", abi)]
    # With dependencies, pip would take those of the host's architecture.
    chosen = (
        "--no-deps",
        "--only-binary=:all:",
        "--implementation",
        "cp",
        "--python-version",
        _PYTHON,
    )
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", folder),
        *(*chosen, *tags, _TORCH, *_PACKAGES),
    )


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SetupError(f"{command[0]} failed.\n\n{done.stdout[-2000:]}")
