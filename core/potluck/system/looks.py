"""Look at what the owner of this computer does with it, for the rules of `api.politeness`.

Each look reads one thing in the way of one system, and returns None where it cannot be read. None
raises.
"""

import ctypes
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psutil

from potluck.api.values.politeness import Facts, Rules
from potluck.api.values.vitals import Vitals
from potluck.system.commands import Ask, ask

_GAME_MODE: Final = "com.feralinteractive.GameMode"
_MUTTER: Final = "org.gnome.Mutter.IdleMonitor"
_HOT_C: Final = 95.0  # where the sensor names no limit of its own
_LIMITS_C: Final = (60.0, 110.0)  # some sensors name nonsense
_COLD_C, _NONSENSE_C = 0.0, 130.0  # of a processor that is on: what lies beyond is no temperature
_STEP_C, _STEP_SHARE = 5.0, 0.01  # in which people are told of it, and of a battery
_WAVERS = 0.8  # of a step, by which a value may differ from the one that was told
_PROCESSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
_GAME_OR_TALK: Final = (3, 4)  # QUNS_RUNNING_D3D_FULL_SCREEN, QUNS_PRESENTATION_MODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """How this computer is looked at; tests hand in their own."""

    is_full_screen: Callable[[], bool | None]
    idle_s: Callable[[], float | None]
    is_on_battery: Callable[[], bool | None]
    free_share: Callable[[], float | None]
    is_hot: Callable[[], bool | None]
    vitals: Callable[[Vitals], Vitals] = lambda _: Vitals()
    """What people are told, by what they were told before; no rule depends on it."""

    def at(self, rules: Rules) -> Facts:
        """Look at what these rules need to know."""
        seen: dict[str, Any] = {
            "is_full_screen": self.is_full_screen() if rules.games else None,
            "is_on_battery": self.is_on_battery() if rules.battery else None,
            "free_share": self.free_share() if rules.memory else None,
            "is_hot": self.is_hot() if rules.heat else None,
            "idle_s": self.idle_s() if rules.activity else None,
        }
        return Facts(**{name: value for name, value in seen.items() if value is not None})


def looks(system: str = sys.platform, ask: Ask = ask) -> Looks:
    """Return the looks of a system, by its name in `sys.platform`."""
    full_screen, idle = (lambda: full_screen_on_linux(ask)), (lambda: idle_on_linux(ask))
    if system == "darwin":
        full_screen, idle = (lambda: full_screen_on_macos(ask)), (lambda: idle_on_macos(ask))
    elif system == "win32":
        full_screen, idle = full_screen_on_windows, idle_on_windows
    return Looks(
        is_full_screen=full_screen,
        idle_s=idle,
        is_on_battery=on_battery,
        free_share=free_share,
        is_hot=lambda: hot(_temperatures()),
        vitals=lambda before: vitals(_battery(), _temperatures(), before),
    )


# --- all systems


def on_battery() -> bool | None:
    """Whether the computer runs on its battery; None: it has none."""
    battery = _battery()
    return None if battery is None else battery.power_plugged is False


def vitals(battery: Any, sensors: Mapping[str, list[Any]], before: Vitals) -> Vitals:
    """What people are told of a battery and of temperatures, in steps that do not change all the time.

    Args:
        battery: as psutil says; None: there is none.
        sensors: its temperatures by chip. What no processor can have is passed over.
        before: what they were told last.
    """
    read = [entry.current for entry in _processors(sensors)]
    heat = max((c for c in read if c is not None and _COLD_C < c < _NONSENSE_C), default=None)
    share = None if battery is None or battery.percent is None else battery.percent / 100
    return Vitals(
        battery=_calm(
            None if share is None else min(max(share, 0.0), 1.0), _STEP_SHARE, before.battery
        ),
        plugged=battery is not None and battery.power_plugged is True,
        heat_c=_calm(heat, _STEP_C, before.heat_c),
    )


def _calm(value: float | None, step: float, before: float | None) -> float | None:
    """A value in steps. One that wavers between two of them stays at the one that was told before."""
    if value is None:
        return None
    if before is not None and abs(value - before) < _WAVERS * step:
        return before
    return round(step * round(value / step), 2)


def _battery() -> Any:
    try:
        return psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, NotImplementedError):
        return None


def free_share() -> float | None:
    """The share of the RAM that programs can get at once."""
    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError):
        return None
    return memory.available / memory.total


def hot(sensors: Mapping[str, list[Any]]) -> bool | None:
    """Whether a processor is as hot as it should ever be; None: there is no sensor of one."""
    read = _processors(sensors)
    if not read:
        return None
    low, high = _LIMITS_C
    return any(
        entry.current >= (entry.high if entry.high and low <= entry.high <= high else _HOT_C)
        for entry in read
    )


def _processors(sensors: Mapping[str, list[Any]]) -> list[Any]:
    return [entry for chip in _PROCESSORS for entry in sensors.get(chip, ())]


def _temperatures() -> Mapping[str, list[Any]]:
    try:
        return psutil.sensors_temperatures()
    except (AttributeError, OSError, RuntimeError, ValueError):  # Linux and FreeBSD alone have it
        return {}


# --- Linux


def full_screen_on_linux(ask: Ask) -> bool | None:
    """Whether GameMode has a game, or the window in front of an X display fills the screen.

    Without GameMode, a Wayland session tells no program what is in front.
    """
    games = ask(
        "busctl", "--user", "--auto-start=no", "get-property",
        _GAME_MODE, "/com/feralinteractive/GameMode", _GAME_MODE, "ClientCount",
    )  # fmt: skip
    if games is not None and (count := re.search(r"\d+", games)) and int(count[0]):
        return True
    active = re.search(r"0x[0-9a-f]+", ask("xprop", "-root", "_NET_ACTIVE_WINDOW") or "")
    if active is None:
        return None if games is None else False
    state = ask("xprop", "-id", active[0], "_NET_WM_STATE")
    return None if state is None else "_NET_WM_STATE_FULLSCREEN" in state


def idle_on_linux(ask: Ask) -> float | None:
    """How long nothing was typed or moved: as GNOME says, or the X server (`xprintidle`)."""
    said = ask(
        "busctl", "--user", "--auto-start=no", "call",
        _MUTTER, "/org/gnome/Mutter/IdleMonitor/Core", _MUTTER, "GetIdletime",
    )  # fmt: skip
    milliseconds = re.search(r"\d+", said or ask("xprintidle") or "")
    return None if milliseconds is None else int(milliseconds[0]) / 1e3


# --- macOS


def full_screen_on_macos(ask: Ask) -> bool | None:
    """Whether a program keeps the display on, as games and films do."""
    said = re.search(r"PreventUserIdleDisplaySleep\s+(\d)", ask("pmset", "-g", "assertions") or "")
    return None if said is None else said[1] != "0"


def idle_on_macos(ask: Ask) -> float | None:
    """How long nothing was typed or moved."""
    said = re.search(r'"HIDIdleTime" = (\d+)', ask("ioreg", "-c", "IOHIDSystem", "-d", "4") or "")
    return None if said is None else int(said[1]) / 1e9


# --- Windows


class _LastInput(ctypes.Structure):
    """LASTINPUTINFO."""

    _fields_ = (("size", ctypes.c_uint32), ("ticks", ctypes.c_uint32))  # pyright: ignore[reportIncompatibleVariableOverride, reportUnannotatedClassAttribute]


def full_screen_on_windows() -> bool | None:
    """Whether a game has the screen, or a presentation is given."""
    state = ctypes.c_int()
    shell = _windows_library("shell32")
    if shell is None or shell.SHQueryUserNotificationState(ctypes.byref(state)) != 0:
        return None
    return state.value in _GAME_OR_TALK


def idle_on_windows() -> float | None:
    """How long nothing was typed or moved in this session."""
    user, kernel = _windows_library("user32"), _windows_library("kernel32")
    last = _LastInput(size=ctypes.sizeof(_LastInput))
    if user is None or kernel is None or not user.GetLastInputInfo(ctypes.byref(last)):
        return None
    return ((kernel.GetTickCount() - last.ticks) % (1 << 32)) / 1e3  # both start again at 2**32


def _windows_library(name: str) -> Any:
    """A library of Windows; None on other systems."""
    windll = getattr(ctypes, "windll", None)
    return getattr(windll, name, None) if windll is not None else None
