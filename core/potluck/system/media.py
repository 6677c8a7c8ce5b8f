"""Whether a network interface is Wi-Fi or a cable, and how fast the cable is, in the way of each system.

The rate of Wi-Fi is not told: it changes every second, and says little of what gets through.
"""

import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import psutil

from potluck.system.commands import Ask, ask

Kind: TypeAlias = Literal["wifi", "cable", ""]
_ETHERNET: Final = "1"  # ARPHRD_ETHER
_WIFI_MEDIA, _CABLE_MEDIA = ("1", "9"), ("14",)  # NDIS_PHYSICAL_MEDIUM
_ADAPTERS: Final = 'Get-NetAdapter|%{"$([int]$_.NdisPhysicalMedium) $($_.Name)"}'


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0  # until a program that was too slow is asked again


class Medium(NamedTuple):
    """What an interface is. `kind` is empty where the system does not say."""

    kind: Kind = ""
    mbit: int | None = None  # Mbit/s of a cable; None: the system does not say


class Media:
    """Looks at the interfaces of this computer.

    Args:
        system: as `sys.platform`.
        ask: runs a program of the system.
        folder: where Linux describes its interfaces.
        clock: seconds.
    """

    def __init__(
        self,
        system: str = sys.platform,
        *,
        ask: Ask = ask,
        folder: Path = Path("/sys/class/net"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._system = system
        self._ask = ask
        self._folder = folder
        self._clock = clock
        self._names: frozenset[str] = frozenset()  # that the system was asked for
        self._kinds: Mapping[str, Kind] = {}
        self._pause_s = _FIRST_PAUSE_S
        self._again_at: float | None = None  # None: it has answered

    def look(self, names: Collection[str]) -> Mapping[str, Medium]:
        """What these interfaces are. It may block: programs are asked when there are others than before.

        One that does not answer is asked again, after a pause that grows.
        """
        if self._system == "linux":
            return {name: linux_medium(name, self._folder) for name in names}
        self._ask_for(frozenset(names))
        kinds, speeds = self._kinds, _speeds()
        return {name: _medium(kinds.get(name, ""), speeds.get(name)) for name in names}

    def _ask_for(self, names: frozenset[str]) -> None:
        is_due = self._again_at is not None and self._clock() >= self._again_at
        if names == self._names and not is_due:
            return
        if names != self._names:
            self._names, self._pause_s = names, _FIRST_PAUSE_S
        if (asked := _ASKED.get(self._system)) is None:
            return
        words, read = asked
        if (said := self._ask(*words)) is None:
            self._again_at = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return
        self._kinds, self._again_at = read(said), None


def _medium(kind: Kind, mbit: int | None) -> Medium:
    return Medium(kind, mbit if kind == "cable" else None)


def _speeds() -> Mapping[str, int]:
    with suppress(OSError):
        return {name: state.speed for name, state in psutil.net_if_stats().items() if state.speed}
    return {}


# --- Linux


def linux_medium(name: str, folder: Path, depth: int = 2) -> Medium:
    """Read what the kernel says. A bridge, a bond and a VLAN are what they are made of."""
    place = folder / name
    if (place / "wireless").exists() or (place / "phy80211").exists():
        return Medium("wifi")
    if (place / "device").exists():
        is_cable = _read(place / "type") == _ETHERNET
        return Medium("cable", _speed(place)) if is_cable else Medium()
    lower: list[str] = []
    with suppress(OSError):  # a bridge may go meanwhile
        lower = (
            [path.name.removeprefix("lower_") for path in place.glob("lower_*")] if depth else []
        )
    found = [linux_medium(each, folder, depth - 1) for each in lower]
    return max(found, key=lambda medium: medium.kind, default=Medium())  # Wi-Fi before a cable


def _speed(place: Path) -> int | None:
    mbit = _read(place / "speed")
    return int(mbit) if mbit.isdecimal() and int(mbit) > 0 else None


def _read(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):  # a cable that is not plugged in has no speed
        return file.read_text().strip()
    return ""


# --- macOS, Windows


def macos_kinds(said: str) -> Mapping[str, Kind]:
    """Read `networksetup -listallhardwareports`: pairs of `Hardware Port: Wi-Fi` and `Device: en0`."""
    ports = re.findall(r"^Hardware Port: (.*)\nDevice: (\S+)", said, re.MULTILINE)
    return {device: _macos_kind(port) for port, device in ports}


def _macos_kind(port: str) -> Kind:
    if port in ("Wi-Fi", "AirPort"):
        return "wifi"
    return "cable" if re.search(r"Ethernet|LAN|Thunderbolt", port) else ""


def windows_kinds(said: str) -> Mapping[str, Kind]:
    """Read lines of the number of a medium and the name of its interface, which are in no language."""
    kinds: dict[str, Kind] = {}
    for line in said.splitlines():
        number, _, name = line.strip().partition(" ")
        kind: Kind = ""
        if number in _WIFI_MEDIA:
            kind = "wifi"
        elif number in _CABLE_MEDIA:
            kind = "cable"
        kinds[name] = kind
    return kinds


# What a system is asked, and who reads the answer.
_ASKED: Final[Mapping[str, tuple[Sequence[str], Callable[[str], Mapping[str, Kind]]]]] = {
    "darwin": (("networksetup", "-listallhardwareports"), macos_kinds),
    "win32": (("powershell", "-NoProfile", "-Command", _ADAPTERS), windows_kinds),
}
