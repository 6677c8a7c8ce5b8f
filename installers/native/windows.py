"""An installer for Windows, for one user and without an administrator, by Inno Setup.

Inno Setup and not WiX: it installs for one user without a bundle around it, asks questions when it
removes, and is one file of text (`files/potluck.iss`). MSI is for who installs on many computers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from native import launchers, tree
from native.project import BuildError, machine, package_name, version

# Inno Setup's names of what may run a package; Windows on Arm runs the x64 one.
_RUNS_ON = {"x86_64": "x64compatible", "aarch64": "arm64"}
_COMPILER = (r"C:\Program Files (x86)\Inno Setup 6\ISCC.exe", "ISCC.exe", "iscc")


def installer(made: Path, out: Path) -> Path:
    """Write the installer."""
    tree.write_info(made, kind="windows")
    package = out / package_name("windows", ".exe")
    command = [_compiler(), "/Qp", *defines(made, package), str(launchers.FILES / "potluck.iss")]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise BuildError(f"Inno Setup failed:\n{ended.stdout.strip()}\n{ended.stderr.strip()}")
    return package


def defines(made: Path, package: Path) -> list[str]:
    """Return the values of the script, as words of Inno Setup's compiler."""
    values = {
        "Version": version(),
        "FileVersion": file_version(version()),
        "Tree": str(made),
        "Out": str(package.parent),
        "Name": package.stem,
        "RunsOn": _RUNS_ON[machine()],
    }
    return [f"/D{name}={value}" for name, value in values.items()]


def file_version(text: str) -> str:
    """Return a version as Windows wants it of files: four numbers."""
    numbers = [*re.findall(r"\d+", text.partition("+")[0])[:3], "0", "0", "0"][:3]
    return ".".join([*numbers, "0"])


def _compiler() -> str:
    for name in _COMPILER:
        if (found := shutil.which(name)) is not None:
            return found
    raise BuildError("Inno Setup 6 is missing. Install it: winget install JRSoftware.InnoSetup")
