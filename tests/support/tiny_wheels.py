"""Tiny wheels that stand in for those of torch, and locks that name them."""

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import parse_wheel_filename

from potluck.ids import Digest
from potluck.runtime.choice import Choice
from potluck.runtime.lock import Wheel

TORCH = {
    "torch/__init__.py": b"""\
__version__ = "2.13.0"

class Ones:
    def __matmul__(self, other):
        return self
    def __getitem__(self, place):
        return 8.0

def ones(rows, columns):
    return Ones()
"""
}


def zip_wheel(
    path: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "torch",
    version: str = "2.13.0",
    record: Mapping[str, tuple[str, int]] | None = None,
    requires: Iterable[str] = (),
) -> Path:
    """Write a wheel with these files; `record` has lines that differ from the truth."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    members = {
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = {member: (_hash(data), len(data)) for member, data in members.items()} | dict(
        record or {}
    )
    text = io.StringIO()
    rows = [[member, f"sha256={sha256}", nbytes] for member, (sha256, nbytes) in listed.items()]
    csv.writer(text, lineterminator="\n").writerows([*rows, [f"{info}/RECORD", "", ""]])
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", text.getvalue())
    return path


def make_wheels(folder: Path, *, filling: int = 0) -> tuple[Path, Path]:
    """A torch that multiplies, and something that it needs; `filling`: bytes more."""
    names = "torch-2.13.0-py3-none-any.whl", "sympy-1.14.0-py3-none-any.whl"
    filled = {**TORCH, "torch/lib/filling.bin": hashlib.shake_128(b"x").digest(filling)}
    torch = zip_wheel(folder / names[0], filled, requires=["sympy>=1.13"])
    needed = {"sympy/__init__.py": b"", "sympy-1.14.0.data/scripts/isympy": b"#!python\n"}
    return torch, zip_wheel(folder / names[1], needed, name="sympy", version="1.14.0")


def wheel_of(path: Path, url: str | None = None) -> Wheel:
    """What a lock would say of a file."""
    name, version, _, tags = parse_wheel_filename(path.name)
    return Wheel(
        name=name,
        version=str(version),
        filename=path.name,
        digest=Digest(hashlib.sha256(path.read_bytes()).hexdigest()),
        nbytes=path.stat().st_size,
        tags=tags,
        url=url,
    )


def choice_of(paths: Iterable[Path], url: str | None = None) -> Choice:
    """A choice of these files, at an address that their names are added to."""
    wheels = [wheel_of(path, None if url is None else url + path.name) for path in paths]
    return Choice(variant="cpu", wheels=tuple(wheels))


def lock_text(paths: Iterable[Path], *, variant: str = "cpu", url: str | None = None) -> str:
    """A lock that names these files, for every computer."""
    lines = ['lock-version = "1.0"', 'created-by = "tests"']
    for wheel in choice_of(paths, url).wheels:
        lines += ["[[packages]]", f'name = "{wheel.name}"', f'version = "{wheel.version}"']
        lines += ["[[packages.wheels]]", f'name = "{wheel.filename}"', f"size = {wheel.nbytes}"]
        lines += [f'url = "{wheel.url}"'] if wheel.url else []
        lines += [f'hashes = {{ sha256 = "{wheel.digest}" }}']
    return "\n".join([*lines, "[tool.potluck]", f'variant = "{variant}"', ""])


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
