"""Package indexes: which wheels they have for a Python, and what these require.

An index is one as PEP 691 or PEP 503 describes it. Needs `httpx` and `packaging`, as Potluck does.
"""

import io
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.parser import BytesParser
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, eq=False)
class Platform:
    """A system and processor, with its markers and the tags of its wheels."""

    system: str
    machine: str
    markers: Mapping[str, str]
    tags: Sequence[str]


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
    requires: tuple[str, ...] | None = None  # None: the index is asked


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
            piece = answer.content[: stop - self._at]
            if answer.status_code == httpx.codes.OK:  # the server knows no ranges, and sends all
                self._whole = answer.content
                piece = self._whole[self._at : stop]
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
    known: Sequence[File] = ()  # of torch, where its own index is not asked
    _files: dict[str, list[File]] = field(default_factory=dict)
    _requires: dict[str, list[Requirement]] = field(default_factory=dict)

    def files(self, name: str) -> list[File]:
        """The wheels of a package that are neither withdrawn nor made for tests."""
        if name not in self._files:
            is_torchs = name == "torch" or name.endswith("-rocm")  # which PyPI has none of
            first = [self.torch] if self.torch and is_torchs else []
            found: list[File] = []
            for index in [*first, self.general]:
                found = found or self._page(index, name)
            also = self.known if name == "torch" and not first else ()
            self._files[name] = [*also, *found]
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
            if (file := _file(filename, urljoin(page, url), sha256, size, python))
            and sha256
            and file.name == name
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
        if file.requires is not None:
            return [Requirement(line) for line in file.requires]
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


def read_known(path: Path, variant: str) -> list[File]:
    """The wheels of torch that a file of this project lists for a variant."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))
    found: list[File] = []
    for each in listed["wheels"]:
        filename = unquote(urlsplit(each["url"]).path).rpartition("/")[2]
        file = _file(filename, each["url"], each["sha256"], each["size"], None)
        if file is None:
            raise ValueError(f"{filename} is no wheel")
        if each["variant"] == variant:
            found.append(replace(file, requires=tuple(listed["requires"])))
    return found


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
