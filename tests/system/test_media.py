"""What each system says of its network interfaces: Wi-Fi, a cable and its speed, or nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from potluck.system import media
from potluck.system.media import Media, Medium


@pytest.fixture
def interface(tmp_path: Path) -> Callable[..., None]:
    """Describes an interface as Linux does in /sys/class/net."""

    def describe(name: str, *parts: str, **files: str) -> None:
        (tmp_path / name).mkdir()
        for part in parts:
            (tmp_path / name / part).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text + "\n")

    return describe


def linux(folder: Path, *names: str) -> list[Medium]:
    found = Media("linux", folder=folder).look(names)
    return [found[name] for name in names]


def test_linux_tells_wifi_from_a_cable_and_its_speed(
    tmp_path: Path, interface: Callable[..., None]
) -> None:
    interface("wlan0", "wireless", "device", type="1", speed="0")
    interface("wlan1", "phy80211", "device", type="1")
    interface("eth0", "device", type="1", speed="2500")
    interface("eth1", "device", type="1", speed="-1")
    interface("wwan0", "device", type="519")
    interface("tun0", type="65534", speed="10000")

    assert linux(tmp_path, "wlan0", "wlan1", "eth0", "eth1", "wwan0", "tun0", "gone") == [
        Medium("wifi"), Medium("wifi"), Medium("cable", 2500), Medium("cable"), Medium(), Medium(), Medium(),
    ]  # fmt: skip


def test_a_bridge_is_what_it_is_made_of(tmp_path: Path, interface: Callable[..., None]) -> None:
    interface("eth0", "device", type="1", speed="1000")
    interface("veth1")
    interface("br0", "lower_eth0", "lower_veth1")
    interface("docker0", "lower_veth1")
    interface("br0.5", "lower_br0")
    interface("loop0", "lower_loop0")

    assert linux(tmp_path, "br0", "br0.5", "docker0", "loop0") == [
        Medium("cable", 1000), Medium("cable", 1000), Medium(), Medium(),
    ]  # fmt: skip


PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 00:00:00:00:00:01

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 00:00:00:00:00:02

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: N/A

Hardware Port: Bluetooth PAN
Device: en8
Ethernet Address: 00:00:00:00:00:03
"""


def test_macos_tells_by_its_hardware_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_speeds", lambda: {"en0": 1000, "en1": 866})
    asked: list[str] = []

    def ask(*words: str) -> str:
        asked.append(words[0])
        return PORTS

    looks = Media("darwin", ask=ask)
    names = ("en0", "en1", "bridge0", "en8", "utun3")
    for _ in range(2):
        assert looks.look(names) == {
            "en0": Medium("cable", 1000),
            "en1": Medium("wifi"),
            "bridge0": Medium("cable"),
            "en8": Medium(),
            "utun3": Medium(),
        }
    assert asked == ["networksetup"]  # and again only when there are others
    looks.look(("en0",))
    assert len(asked) == 2


def test_windows_tells_by_the_number_of_the_medium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_speeds", lambda: {"Ethernet 2": 100, "WLAN": 400})
    looks = Media("win32", ask=lambda *_: "14 Ethernet 2\r\n9 WLAN\r\n0 vEthernet (WSL)\r\n")

    assert looks.look(("Ethernet 2", "WLAN", "vEthernet (WSL)", "Mobil")) == {
        "Ethernet 2": Medium("cable", 100),
        "WLAN": Medium("wifi"),
        "vEthernet (WSL)": Medium(),
        "Mobil": Medium(),
    }


def test_a_system_that_was_too_slow_is_asked_again_after_a_pause_that_grows() -> None:
    now, asked = 0.0, list[float]()

    def ask(*_: str) -> str | None:
        asked.append(now)
        return None if len(asked) < 4 else "9 WLAN\r\n"

    looks = Media("win32", ask=ask, clock=lambda: now)
    for second in range(0, 200, 2):
        now = float(second)
        kind = looks.look(("WLAN",))["WLAN"].kind
        assert kind == ("wifi" if len(asked) == 4 else "")
    assert asked == [0, 10, 30, 70]


def test_a_bridge_that_goes_while_it_is_looked_at_is_nothing(
    tmp_path: Path, interface: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    interface("br0", "lower_eth0")

    def gone(_path: Path, _pattern: str) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "glob", gone)
    assert linux(tmp_path, "br0") == [Medium()]


@pytest.mark.parametrize("system", ["darwin", "win32", "freebsd14"])
def test_a_system_that_says_nothing_is_believed(system: str) -> None:
    assert Media(system, ask=lambda *_: None).look(("en0",)) == {"en0": Medium()}
