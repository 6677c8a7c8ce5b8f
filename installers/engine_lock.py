"""Make a lock of the engine: every wheel of torch, and of what only it needs, for all systems and Pythons.

    python installers/engine_lock.py metal                     # from PyPI, into assets/engine/pylock.metal.toml
    python installers/engine_lock.py cpu --torch-index https://download.pytorch.org/whl/cpu
    python installers/engine_lock.py cuda --torch-index https://download.pytorch.org/whl/cu130

An index is one as PEP 691 or PEP 503 describes it. Of what a release offers, that which the index has is listed; what
is missing is printed, and the exit status is 1. Needs `httpx` and `packaging`, as Potluck does.
"""

import argparse
import io
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import BytesParser
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ROOT = Path(__file__).resolve().parent.parent
PYPI = "https://pypi.org/simple"
PYTHONS = ((3, 11), (3, 12), (3, 13))
# The glibc of the oldest system that torch itself runs on, and older ones.
MANYLINUX = range(28, 4, -1)
JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, eq=False)
class Platform:
    """A system and processor, with its markers and the tags of its wheels."""

    system: str
    machine: str
    markers: Mapping[str, str]
    tags: Sequence[str]


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
VARIANTS = {"cpu": (*LINUX, WINDOWS), "cuda": (*LINUX, WINDOWS), "metal": (MAC,)}


@dataclass(frozen=True)
class Environment:
    """One Python on one platform."""

    platform: Platform
    python: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.platform.system} {self.platform.machine}, Python {self.version}"

    @property
    def version(self) -> str:
        return ".".join(map(str, self.python))

    def markers(self) -> dict[str, str]:
        return {
            **self.platform.markers,
            "platform_machine": self.platform.machine,
            "python_version": self.version,
            "python_full_version": f"{self.version}.9",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "extra": "",
        }

    def tags(self) -> Iterator[Tag]:
        yield from cpython_tags(self.python, platforms=self.platform.tags)
        yield from compatible_tags(
            self.python, f"cp{''.join(map(str, self.python))}", self.platform.tags
        )


@dataclass(frozen=True)
class File:
    """A wheel as an index lists it."""

    name: str
    version: Version
    tags: frozenset[Tag]
    filename: str
    url: str
    sha256: str
    size: int | None
    python: SpecifierSet  # of the Pythons that it is for, as far as the index says


class RemoteFile(io.RawIOBase):
    """A file of a server that is read by ranges: of a wheel of a gigabyte, the few kB of its metadata."""

    def __init__(self, client: httpx.Client, url: str, size: int) -> None:
        self._client, self._url, self._size, self._at = client, url, size, 0
        self._whole = b""

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        stop = min(self._size, self._at + len(view))
        if stop <= self._at:
            return 0
        if self._whole:
            piece = self._whole[self._at : stop]
        else:
            headers = {"Range": f"bytes={self._at}-{stop - 1}", "Accept-Encoding": "identity"}
            answer = self._client.get(self._url, headers=headers).raise_for_status()
            piece = answer.content
            if answer.status_code == httpx.codes.OK:  # the server knows no ranges, and sends all
                self._whole, piece = piece, piece[self._at : stop]
        count = len(piece)
        view[:count] = piece
        self._at += count
        return count


class Links(HTMLParser):
    """The links of an index's page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


@dataclass
class Indexes:
    """Package indexes: torch's own first, if there is one."""

    client: httpx.Client
    general: str
    torch: str | None
    _files: dict[str, list[File]] = field(default_factory=dict)
    _requires: dict[str, list[Requirement]] = field(default_factory=dict)

    def files(self, name: str) -> list[File]:
        """The wheels of a package that are neither withdrawn nor made for tests."""
        if name not in self._files:
            first = [self.torch] if self.torch and name == "torch" else []
            found: list[File] = []
            for index in [*first, self.general]:
                found = found or self._page(index, name)
            self._files[name] = found
        return self._files[name]

    def _page(self, index: str, name: str) -> list[File]:
        answer = self.client.get(
            f"{index.rstrip('/')}/{name}/", headers={"Accept": f"{JSON}, text/html;q=0.1"}
        )
        if answer.status_code in (403, 404):
            return []
        answer.raise_for_status()
        page = str(answer.url)
        if answer.headers.get("content-type", "").startswith(JSON):
            entries = [
                (
                    f["filename"],
                    f["url"],
                    f["hashes"].get("sha256", ""),
                    f.get("size"),
                    f.get("requires-python"),
                )
                for f in answer.json()["files"]
                if not f.get("yanked")
            ]
        else:
            links = Links()
            links.feed(answer.text)
            entries = [
                (
                    unquote(urlsplit(link).path).rpartition("/")[2],
                    urldefrag(link)[0],
                    _sha256(link),
                    None,
                    None,
                )
                for link in links.found
            ]
        return [
            file
            for filename, url, sha256, size, python in entries
            if (file := _file(filename, urljoin(page, url), sha256, size, python)) and sha256
        ]

    def best(self, requirement: Requirement, environment: Environment) -> File | None:
        """The newest wheel of a package that the requirement and a Python take."""
        rank = {tag: place for place, tag in enumerate(environment.tags())}
        wanted, found = requirement.specifier, []
        for file in self.files(canonicalize_name(requirement.name)):
            place = min((rank[tag] for tag in file.tags if tag in rank), default=None)
            is_for = file.python.contains(environment.version)
            if place is not None and is_for and wanted.contains(file.version, prereleases=False):
                found.append((file.version, -place, file))
        return max(found, key=lambda each: each[:2])[2] if found else None

    def requires(self, file: File) -> list[Requirement]:
        """What a wheel requires."""
        if file.url not in self._requires:
            answer = self.client.get(file.url + ".metadata")
            data = answer.content if answer.status_code == httpx.codes.OK else self._metadata(file)
            lines = BytesParser().parsebytes(data).get_all("Requires-Dist", [])
            self._requires[file.url] = [Requirement(line) for line in lines]
        return self._requires[file.url]

    def size(self, file: File) -> int:
        """How many bytes a wheel has; an index in HTML does not say."""
        if file.size is not None:
            return file.size
        answer = self.client.head(
            file.url, headers={"Accept-Encoding": "identity"}
        ).raise_for_status()
        return int(answer.headers["Content-Length"])

    def _metadata(self, file: File) -> bytes:
        remote = RemoteFile(self.client, file.url, self.size(file))
        with zipfile.ZipFile(io.BufferedReader(remote, 1 << 20)) as archive:
            name = next(
                n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)
            )
            return archive.read(name)


def _sha256(link: str) -> str:
    return urldefrag(link)[1].removeprefix("sha256=") if "#sha256=" in link else ""


def _file(
    filename: str, url: str, sha256: str, size: int | None, python: str | None
) -> File | None:
    try:
        name, version, _, tags = parse_wheel_filename(filename)
        pythons = SpecifierSet(python or "")
    except (InvalidWheelFilename, InvalidSpecifier):
        return None
    return File(name, version, tags, filename, url, sha256, size, pythons)


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
    return "metal" if "macosx" in torch.filename else "cpu"


def resolve(
    variant: str, version: str, indexes: Indexes, base: Sequence[Requirement]
) -> tuple[dict[Environment, dict[str, File]], list[str]]:
    """The wheels of each environment, and a sentence for each one that has none."""
    found: dict[Environment, dict[str, File]] = {}
    lacking: list[str] = []
    for platform in VARIANTS[variant]:
        for python in PYTHONS:
            environment = Environment(platform, python)
            try:
                others = closure(indexes, base, environment, is_strict=False)
                wheels = closure(
                    indexes, [Requirement(f"torch=={version}")], environment, without=others
                )
                if (kind := kind_of(wheels["torch"], wheels)) != variant:
                    raise LookupError(f"torch for {variant} (there is one for {kind})")
            except LookupError as error:
                lacking.append(f"{environment.name}: the index has no {error}")
            else:
                found[environment] = wheels
            print(
                environment.name,
                "…",
                "there" if environment in found else "missing",
                file=sys.stderr,
            )
    return found, lacking


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
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--torch", default="2.13.0", metavar="VERSION", help="(%(default)s)")
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
        indexes = Indexes(client, options.index, options.torch_index)
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
