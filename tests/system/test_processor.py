"""What a system says of its processor."""

import ctypes
import platform
import sys
from collections.abc import Mapping
from types import SimpleNamespace

import psutil
import pytest

from potluck.system import processor
from potluck.system.processor import arm_features, cpu_name, usable_cores


def on_linux(*capabilities: int) -> SimpleNamespace:
    """`ctypes` where the C library's `getauxval` gives the two entries of a processor's capabilities."""
    entries = dict(zip((16, 26), capabilities, strict=True))

    def load(name: str | None) -> SimpleNamespace:
        assert name is None, "the C library is loaded already"
        return SimpleNamespace(getauxval=lambda entry: entries[entry])

    # As a function of C, it takes what is set on it.
    return SimpleNamespace(CDLL=load, c_ulong=ctypes.c_ulong)


def on_windows(*known: int) -> SimpleNamespace:
    """`ctypes` of a Windows that says yes to these numbers of features."""
    kernel32 = SimpleNamespace(IsProcessorFeaturePresent=lambda number: int(number in known))
    return SimpleNamespace(windll=SimpleNamespace(kernel32=kernel32))


@pytest.mark.parametrize(
    ("capabilities", "features"),
    [
        ((0x8FB, 0x0), set()),  # a Cortex-A72: Raspberry Pi 4
        ((0x119FFB, 0x0), {"dotprod"}),  # a Neoverse N1, as a Cortex-A76: Raspberry Pi 5
        ((0x2CBFFFFB, 0x76181), {"dotprod", "i8mm"}),
    ],
)
def test_linux_names_the_features_of_an_arm_processor(
    capabilities: tuple[int, int], features: set[str]
) -> None:
    assert arm_features("linux", on_linux(*capabilities)) == features


def test_a_c_library_that_does_not_say_has_none_of_them() -> None:
    silent = SimpleNamespace(CDLL=lambda _name: SimpleNamespace())

    assert arm_features("linux", silent) == set()


@pytest.mark.parametrize(
    ("known", "features"),
    [((), set()), ((43,), {"dotprod"}), ((43, 66), {"dotprod", "i8mm"})],
)
def test_windows_is_asked_by_number(known: tuple[int, ...], features: set[str]) -> None:
    assert arm_features("win32", on_windows(*known)) == features


def test_elsewhere_the_name_of_the_processor_has_to_say_it() -> None:
    assert arm_features("darwin", SimpleNamespace()) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="the entries are those of Linux")
def test_the_real_c_library_answers() -> None:
    found = arm_features()

    assert found <= {"dotprod", "i8mm"}
    assert found == set() or platform.machine() == "aarch64"


def answers(known: Mapping[str, str]) -> processor.Ask:
    return lambda *words: known.get(" ".join(words))


@pytest.mark.parametrize(
    ("answer", "cores"), [("4\n", 4), ("", 10), ("0\n", 10), ("unknown oid\n", 10)]
)
def test_a_mac_computes_with_its_fast_cores(
    monkeypatch: pytest.MonkeyPatch, answer: str, cores: int
) -> None:
    """Macs of Intel have but one kind of core, and know no levels."""
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 10)

    assert usable_cores("darwin", answers({"sysctl -n hw.perflevel0.physicalcpu": answer})) == cores


@pytest.mark.skipif(sys.platform != "linux", reason="others let a process have all cores")
def test_a_container_may_use_fewer_cores_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {3, 7, 9})

    assert usable_cores() == 3


def test_the_processor_has_a_name() -> None:
    name = cpu_name()

    assert name
    assert name == name.strip()
    assert "\n" not in name


def test_a_mac_is_asked_for_the_name() -> None:
    asked = answers({"sysctl -n machdep.cpu.brand_string": "Apple M3\n"})

    assert cpu_name("darwin", asked) == "Apple M3"


def test_without_an_answer_the_architecture_is_the_name() -> None:
    assert cpu_name("darwin", answers({})) in (platform.processor(), platform.machine())
