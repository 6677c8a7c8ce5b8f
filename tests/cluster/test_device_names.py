import pytest

from potluck.cluster.device_names import computer_of, describe, device_label, device_of, place_name
from potluck.wire.messages import DeviceId, DeviceInfo, DeviceKind


def device(kind: DeviceKind, index: int = 0) -> DeviceInfo:
    return DeviceInfo(kind=kind, index=index, memory_total=2, memory_free=1)


GAMING = (device("cuda"), device("cuda", 1), device("cpu"))
NUMA = (device("cpu"), device("cpu", 1))


@pytest.mark.parametrize(
    ("of", "among", "label"),
    [
        (device("cuda"), (device("cuda"),), "cuda:0"),
        (GAMING[1], GAMING, "cuda:1"),
        (GAMING[2], GAMING, "cpu"),
        (device("mps"), (), "mps"),
        (NUMA[0], NUMA, "cpu:0"),
        (NUMA[1], NUMA, "cpu:1"),
        (NUMA[0].id, NUMA, "cpu:0"),
    ],
)
def test_a_device_is_called_as_torch_does_and_numbered_where_there_are_several(
    of: DeviceInfo, among: tuple[DeviceInfo, ...], label: str
) -> None:
    assert device_label(of, among) == label


def test_a_label_is_understood_again() -> None:
    for devices in (GAMING, NUMA):
        for one in devices:
            assert device_of(device_label(one, devices)) == one.id


def test_a_place_is_on_a_computer() -> None:
    assert computer_of("Desk/cuda:1") == "Desk"
    assert computer_of("a/b/CPU ") == "a/b"
    assert computer_of("Desk") == "Desk"
    assert computer_of("24/7") == "24/7"


def test_a_computer_with_one_device_needs_no_more_than_its_name() -> None:
    assert place_name("Desk", device("cuda"), (device("cuda"),)) == "Desk"
    assert place_name("Desk", DeviceId(kind="cuda", index=1), GAMING) == "Desk/cuda:1"
    assert place_name("x" * 128, GAMING[2], GAMING) == "x" * 124 + "/cpu"


def test_a_device_in_a_few_words() -> None:
    card = DeviceInfo(kind="cuda", name="RTX 3060", memory_total=12_000_000_000, memory_free=1)
    assert describe(card) == "RTX 3060, 12 GB"
    assert describe(device("cpu")) == "cpu, 0 GB"
