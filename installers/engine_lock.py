"""Make a lock of the engine: every wheel of torch, and of what only it needs, for all systems and Pythons.

    python installers/engine_lock.py metal                     # from PyPI, into assets/engine/pylock.metal.toml
    python installers/engine_lock.py cpu --torch-index https://download.pytorch.org/whl/cpu
    python installers/engine_lock.py cuda --torch-index https://download.pytorch.org/whl/cu130
    python installers/engine_lock.py rocm --torch-index https://download.pytorch.org/whl/rocm7.2
    python installers/engine_lock.py cpu --torch 2.13.0 2.10.0 # without that index: see locks/pytorch.toml
    python installers/engine_lock.py --check                   # whether the lists that are here hold on the Internet

An index is one as PEP 691 or PEP 503 describes it. Of what a release offers, that which the index has is listed; what
is missing is printed, and the exit status is 1. Needs `httpx` and `packaging`, as Potluck does.
"""

import argparse
import hashlib
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from package_index import Environment, File, Indexes, Platform, read_known
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import mac_platforms
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PYPI = "https://pypi.org/simple"
PYPI_FILES = "https://files.pythonhosted.org/"
KNOWN = ROOT / "installers" / "locks" / "pytorch.toml"
PYTHONS = ((3, 11), (3, 12), (3, 13))
# The glibc of the oldest system that torch itself runs on, and older ones.
MANYLINUX = range(28, 4, -1)


def _linux(machine: str) -> Platform:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in MANYLINUX]
    markers = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return Platform("Linux", machine, markers, (*tags, f"manylinux2014_{machine}"))


LINUX = _linux("x86_64"), _linux("aarch64")
WINDOWS = Platform(
    "Windows",
    "AMD64",
    {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
    ("win_amd64",),
)
MAC = Platform(
    "macOS",
    "arm64",
    {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    tuple(mac_platforms((14, 0), "arm64")),
)
VARIANTS = {
    "cpu": (*LINUX, WINDOWS),
    "cuda": (*LINUX, WINDOWS),
    "metal": (MAC,),
    "rocm": LINUX[:1],
}


def closure(
    indexes: Indexes,
    roots: Iterable[Requirement],
    environment: Environment,
    *,
    without: Iterable[str] = (),
    is_strict: bool = True,
) -> dict[str, File]:
    """The wheels that a Python needs for these packages, by name; if not strict, those that there are.

    Raises:
        LookupError: the indexes lack one of them.
    """
    wanted: dict[str, SpecifierSet] = {}
    found: dict[str, File] = {}
    todo, left_out = [_copy(root) for root in roots], set(without)
    while todo:
        requirement = todo.pop(0)
        name = canonicalize_name(requirement.name)
        if name in left_out or not _applies(requirement, environment):
            continue
        wanted[name] = wanted.get(name, SpecifierSet()) & requirement.specifier
        is_taken = name in found and wanted[name].contains(found[name].version, prereleases=True)
        if is_taken and not requirement.extras:
            continue
        requirement.specifier = wanted[name]
        file = indexes.best(requirement, environment)
        if file is None and not is_strict:
            continue
        if file is None:
            raise LookupError(f"{name}{wanted[name]}")
        found[name] = file
        for each in map(_copy, indexes.requires(file)):
            if any(_applies(each, environment, extra) for extra in ("", *requirement.extras)):
                each.marker = None
                todo.append(each)
    return found


def _copy(requirement: Requirement) -> Requirement:
    return Requirement(str(requirement))


def _applies(requirement: Requirement, environment: Environment, extra: str = "") -> bool:
    marker = requirement.marker
    return marker is None or marker.evaluate({**environment.markers(), "extra": extra})


def kind_of(torch: File, needed: Iterable[str]) -> str:
    """Which build of torch a wheel is."""
    local = torch.version.local or ""
    if local.startswith("cu") or any(name.startswith(("nvidia-", "cuda-")) for name in needed):
        return "cuda"
    if local.startswith("rocm"):
        return "rocm"
    return "metal" if "macosx" in torch.filename else "cpu"


def resolve(
    variant: str, versions: Sequence[str], indexes: Indexes, base: Sequence[Requirement]
) -> tuple[dict[Environment, dict[str, File]], list[str]]:
    """The wheels of each environment, and a sentence for each one that has none.

    Args:
        variant: the build of torch.
        versions: of torch, the best one first; the others are for where an index has no such build of it.
        indexes: that are asked.
        base: what Potluck requires anyway.
    """
    found: dict[Environment, dict[str, File]] = {}
    lacking: list[str] = []
    for platform in VARIANTS[variant]:
        for python in PYTHONS:
            environment = Environment(platform, python)
            why: LookupError | None = None
            for version in versions:
                try:
                    found[environment] = _wheels(variant, version, indexes, base, environment)
                except LookupError as error:
                    why = why or error
                else:
                    break
            else:
                lacking.append(f"{environment.name}: the index has no {why}")
            print(
                environment.name,
                "…",
                "there" if environment in found else "missing",
                file=sys.stderr,
            )
    return found, lacking


def _wheels(
    variant: str,
    version: str,
    indexes: Indexes,
    base: Sequence[Requirement],
    environment: Environment,
) -> dict[str, File]:
    """The wheels of one environment.

    Raises:
        LookupError: the index lacks one, or has another build of torch.
    """
    others = closure(indexes, base, environment, is_strict=False)
    torch = Requirement(f"torch=={version}")
    wheels = closure(indexes, [torch], environment, without=others)
    if (kind := kind_of(wheels["torch"], wheels)) != variant:
        raise LookupError(f"torch for {variant} (there is one for {kind})")
    return wheels


def check(client: httpx.Client, folder: Path) -> list[str]:
    """A sentence for each file of the lists in a folder that its server does not have as it is listed.

    What is not on PyPI, whose own lists were asked, is downloaded and hashed.
    """
    wrong: list[str] = []
    for path in sorted(folder.glob("pylock.*.toml")):
        for package in tomllib.loads(path.read_text(encoding="utf-8"))["packages"]:
            for wheel in package["wheels"]:
                is_pypi = wheel["url"].startswith(PYPI_FILES)
                say = _size_differs(client, wheel) if is_pypi else _bytes_differ(client, wheel)
                wrong += [f"{path.name}: {wheel['name']} {say}"] if say else []
                print(wheel["name"], "…", say or "as listed", file=sys.stderr)
    return wrong


def _size_differs(client: httpx.Client, wheel: Mapping[str, Any]) -> str:
    answer = client.head(wheel["url"], headers={"Accept-Encoding": "identity"})
    if answer.status_code != httpx.codes.OK:
        return f"has status {answer.status_code}"
    found = int(answer.headers["Content-Length"])
    return "" if found == wheel["size"] else f"has {found} bytes"


def _bytes_differ(client: httpx.Client, wheel: Mapping[str, Any]) -> str:
    sha, count = hashlib.sha256(), 0
    with client.stream("GET", wheel["url"]) as answer:
        if answer.status_code != httpx.codes.OK:
            return f"has status {answer.status_code}"
        for piece in answer.iter_bytes():
            sha.update(piece)
            count += len(piece)
    if (count, sha.hexdigest()) == (wheel["size"], wheel["hashes"]["sha256"]):
        return ""
    return f"has {count} bytes and SHA-256 {sha.hexdigest()}"


def write(
    variant: str,
    found: Mapping[Environment, Mapping[str, File]],
    indexes: Indexes,
    *,
    addresses: bool = True,
) -> str:
    """The lock as text."""
    by_package: dict[tuple[str, Version], dict[Environment, File]] = {}
    for environment, wheels in found.items():
        for name, file in wheels.items():
            by_package.setdefault((name, file.version), {})[environment] = file
    lines = [
        "# Made by installers/engine_lock.py; not written by hand.",
        'lock-version = "1.0"',
        'created-by = "potluck"',
        f"environments = {_strings(marker([environment]) for environment in found)}",
    ]
    for (name, version), places in sorted(
        by_package.items(), key=lambda item: (item[0][0] != "torch", item[0])
    ):
        files = {file.filename: file for file in places.values()}
        lines += [
            "",
            "[[packages]]",
            f"name = {_string(name)}",
            f"version = {_string(str(version))}",
        ]
        if len(places) < len(found):
            lines.append(f"marker = {_string(marker(places))}")
        for file in sorted(files.values(), key=lambda each: each.filename):
            lines += ["", "[[packages.wheels]]", f"name = {_string(file.filename)}"]
            if addresses:
                lines.append(f"url = {_string(file.url)}")
            lines += [
                f"size = {indexes.size(file)}",
                f"hashes = {{ sha256 = {_string(file.sha256)} }}",
            ]
    return "\n".join([*lines, "", "[tool.potluck]", f"variant = {_string(variant)}", ""])


def marker(some: Iterable[Environment]) -> str:
    """A marker that holds in these environments."""
    return " or ".join(
        f"(sys_platform == '{e.platform.markers['sys_platform']}' and platform_machine == '{e.platform.machine}'"
        f" and python_version == '{e.version}')"
        for e in some
    )


def _string(text: str) -> str:
    if not text.isprintable() or set(text) & set('"\\'):
        raise ValueError(f"{text!r} stands in no lock")
    return f'"{text}"'


def _strings(texts: Iterable[str]) -> str:
    return "[\n" + "".join(f"  {_string(text)},\n" for text in texts) + "]"


def base_requirements() -> list[Requirement]:
    """What Potluck depends on besides torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = map(Requirement, project["dependencies"])
    return [requirement for requirement in requirements if requirement.name != "torch"]


def main() -> int:
    """Make one lock."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variant", nargs="?", choices=VARIANTS)
    parser.add_argument("--check", action="store_true", help="of the lists that are here")
    parser.add_argument(
        "--torch",
        nargs="+",
        default=["2.13.0"],
        metavar="VERSION",
        help="the best one first; older ones for where there is no such build (%(default)s)",
    )
    parser.add_argument(
        "--index", default=PYPI, metavar="URL", help="of all packages (%(default)s)"
    )
    parser.add_argument("--torch-index", metavar="URL", help="of torch, if that is another one")
    parser.add_argument(
        "--no-addresses", action="store_true", help="leave out where files are on the Internet"
    )
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    with httpx.Client(follow_redirects=True, timeout=60) as client:
        if options.check:
            lacking = check(client, ROOT / "assets" / "engine")
            for line in lacking:
                print(f"engine_lock: {line}", file=sys.stderr)
            return 1 if lacking else 0
        if options.variant is None:
            parser.error("say which list, or --check")
        known = read_known(KNOWN, options.variant)
        indexes = Indexes(client, options.index, options.torch_index, known)
        found, lacking = resolve(options.variant, options.torch, indexes, base_requirements())
        if found:
            output = options.output or ROOT / "assets" / "engine" / f"pylock.{options.variant}.toml"
            text = write(options.variant, found, indexes, addresses=not options.no_addresses)
            output.write_text(text, encoding="utf-8", newline="\n")
    for line in lacking:
        print(f"engine_lock: {line}", file=sys.stderr)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
