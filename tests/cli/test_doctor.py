"""`doctor`, with a fake node and without one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_backend import Server

from potluck.api.values.doctor import Diagnosis
from potluck.cli import doctor, main
from potluck.doctor.examination import Known, examine
from potluck.doctor.sentences import say

pytestmark = pytest.mark.net

WELL = say("vpn_none")
BLOCKED = say("firewall_blocks", "sudo ufw allow 1/tcp", firewall="ufw", port="1")
Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]


def test_findings_are_printed_with_what_to_do(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.diagnosis = Diagnosis(findings=(BLOCKED, WELL))

    assert potluck("doctor") == 1

    trouble, action, command, well = capsys.readouterr().out.splitlines()
    assert trouble == "PROBLEM    firewall   A rule of ufw keeps other computers out."
    assert action.strip() == BLOCKED.action
    assert command.strip() == "sudo ufw allow 1/tcp"
    assert trouble.index("A rule") == action.index("Let") == well.index("No VPN")


def test_without_a_problem_the_command_succeeds(server: Server, potluck: Potluck) -> None:
    server.backend.diagnosis = Diagnosis(findings=(say("vpn_unknown"), WELL))

    assert potluck("doctor") == 0


def test_findings_are_printed_as_json(server: Server, potluck: Potluck, capsys: Output) -> None:
    heard = say("computers_connected", names="Ana's Mac")
    server.backend.diagnosis = Diagnosis(findings=(BLOCKED, heard))

    assert potluck("doctor", "--json") == 1

    finding, other = json.loads(capsys.readouterr().out)["findings"]
    assert other["sentence"] == "Connected: (names)."  # fit for a public report
    assert finding["code"] == "firewall_blocks"
    assert finding["data"] == {"firewall": "ufw", "port": "1"}


def test_without_a_node_the_command_looks_itself_and_asks_known_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    (tmp_path / "config").mkdir()
    book = {"typed": [{"host": "10.0.0.9", "port": 47777}]}
    (tmp_path / "config" / "addresses.json").write_text(json.dumps(book))
    asked: list[Known] = []

    def blind(known: Known) -> Diagnosis:
        asked.append(known)
        return examine(replace(known, peers=()), deadline_s=0.0)

    monkeypatch.setattr(doctor, "examine", blind)

    assert main(["doctor", "--home", str(tmp_path)]) == 0

    (known,) = asked
    assert [peer.name for peer in known.peers] == ["10.0.0.9"]
    assert known.running is None
    assert "Potluck does not run on this computer" in capsys.readouterr().out
    assert not (tmp_path / "state").exists()  # no node was started
