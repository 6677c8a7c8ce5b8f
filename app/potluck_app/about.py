"""What this program is made of, and what it says for a report of a problem. Without Qt."""

import platform
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from potluck import __version__
from potluck.api.values.schema import ClusterState
from potluck_app import wording

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RECORD = re.compile(r"\d{4}-\d\d-\d\d \S+ [A-Z]+ ")  # how each record of the log begins
_SECRET = re.compile(r"hf_\w+|(?<=[Bb]earer )\S+|(?<==)\S*(?:token|key|secret)\S*|[\w+/=-]{24,}")
_TAIL = 60  # records of the log
_TAIL_BYTES = 64_000


class Package(Struct, frozen=True):
    """An installed package that this program uses."""

    name: str
    version: str
    license: str


def packages() -> list[Package]:
    """Return Potluck and the packages that it needs, directly and through others, by name."""
    found: dict[str, Package] = {}
    wanted = ["potluck"]
    while wanted:
        name = wanted.pop()
        key = name.lower().replace("_", "-")
        if key in found:
            continue
        try:
            known = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # not needed on this system
            continue
        found[key] = Package(known.metadata["Name"], known.version, _license(known.metadata))
        needed = (need for need in known.requires or () if "extra ==" not in need)
        wanted += [match[0] for need in needed if (match := _NAME.match(need))]
    return sorted(found.values(), key=lambda package: package.name.lower())


def _license(info: metadata.PackageMetadata) -> str:
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in info.get_all("Classifier") or ()
        if line.startswith("License ::")
    ]
    stated = info.get_all("License-Expression") or classifiers or info.get_all("License") or [""]
    return " and ".join(stated).splitlines()[0][:80] if stated[0] else "see its files"


def homepage() -> str | None:
    """Return the address of the project, if this installation names one."""
    try:
        urls = metadata.metadata("potluck").get_all("Project-URL") or ()
    except metadata.PackageNotFoundError:
        return None
    return next((url.partition(", ")[2] for url in urls), None)


def system_lines(state: ClusterState | None, qt_version: str) -> list[str]:
    """Return the versions, the system, and the devices of this computer."""
    me = state.me if state is not None else None
    runs = state.node.version if state is not None else __version__
    return [
        f"Potluck {__version__}" + (f", in the background {runs}" if runs != __version__ else ""),
        f"Python {platform.python_version()}, Qt {qt_version}",
        system_line(platform.uname(), _release(), platform.mac_ver()[0]),
        wording.devices_line(me) or "devices not known",
        *([engine_line()] if state is not None else []),
    ]


_MACHINES = {
    "x86_64": "64-bit x86",
    "amd64": "64-bit x86",
    "aarch64": "64-bit ARM",
    "arm64": "64-bit ARM",
    "i686": "32-bit x86",
    "x86": "32-bit x86",
}
_FIRST_11 = 22000  # build of Windows; its version says 10 there, too
_SERVERS = ((26100, "2025"), (20348, "2022"), (17763, "2019"), (14393, "2016"))  # first builds


def system_line(seen: platform.uname_result, release: Mapping[str, str], mac: str) -> str:
    """Return the operating system and the kind of processor, as people name them.

    Args:
        seen: what the system says of itself.
        release: what a Linux says in its os-release(5); empty elsewhere.
        mac: the version of macOS; empty elsewhere.
    """
    machine = _MACHINES.get(seen.machine.lower(), seen.machine)
    match seen.system:
        case "Darwin":
            chip = "Apple silicon" if seen.machine == "arm64" else "Intel"
            return f"macOS {mac}, {chip}"
        case "Windows":
            build = seen.version.rpartition(".")[2]
            return f"Windows {_windows(seen.release, build)}, build {build}, {machine}"
        case _:
            kernel = f"{seen.system} {'.'.join(seen.release.split('.')[:2])}"
            name = release.get("NAME", "").removesuffix(" GNU/Linux")
            named = " ".join(filter(None, (name, release.get("VERSION_ID"))))
            return ", ".join(filter(None, (named, kernel, machine)))


def _windows(release: str, build: str) -> str:
    """Return which Windows it is: `11`, `Server 2025`. Python may know only older ones than this."""
    number = int(build) if build.isdigit() else 0
    if "Server" in release:
        known = (name for first, name in _SERVERS if number >= first)
        return f"Server {next(known, release.replace('Server', '').strip())}"
    return "11" if number >= _FIRST_11 else release


def _release() -> Mapping[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:  # another system, or one that does not say
        return {}


_VARIANTS = (
    ("cpu", "for processors"),
    ("cu", "for NVIDIA graphics cards"),
    ("rocm", "for AMD graphics cards"),
)


@cache  # it cannot change while this program runs
def engine_line() -> str:
    """Return which engine computes here, and for which devices it was made."""
    try:
        number, _, variant = metadata.version("torch").partition("+")
    except metadata.PackageNotFoundError:
        return "The engine is not installed."
    made = next((words for start, words in _VARIANTS if variant.startswith(start)), "as published")
    return f"PyTorch {number}, {made}{f' ({variant})' if variant else ''}"


def report(state: ClusterState | None, qt_version: str, log: Path) -> str:
    """Return a text for a report of a problem: versions, system, devices, and the end of the log.

    What was asked and answered is in no log. What looks like a token or a key is left out, and so
    are lines that are no records, such as those of a traceback, which may quote anything.
    """
    home = str(Path.home())
    lines = [line.replace(home, "~") for line in _records(log)]
    tail = [_SECRET.sub("…", line) for line in lines[-_TAIL:]]
    return "\n".join(
        [*system_lines(state, qt_version), platform.platform(), "", *(tail or ["There is no log."])]
    )


def _records(log: Path) -> Iterable[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if _RECORD.match(line)]
