"""Nodes of one computer find that they are; no other computer looks the same."""

import uuid
from pathlib import Path

import pytest

from potluck.cluster.machine import machine_id


def test_one_start_of_the_system_is_one_computer(tmp_path: Path) -> None:
    boots = [tmp_path / name for name in ("first", "second")]
    for boot in boots:
        boot.write_text(f"{uuid.uuid4()}\n")

    first, second = map(machine_id, boots)

    assert first == machine_id(boots[0])
    assert first != second
    assert len(first) == 32
    assert boots[0].read_text().strip().replace("-", "") != first  # what a peer learns


def test_elsewhere_it_is_the_network_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(address: int) -> str:
        monkeypatch.setattr(uuid, "getnode", lambda: address)
        return machine_id(tmp_path / "none")

    assert seen(0x00_11_22_33_44_55) != seen(0x00_11_22_33_44_56)
    assert seen(0x01_11_22_33_44_55) == ""  # a random number: every start has another
