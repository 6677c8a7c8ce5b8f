"""The main computer changes, as its users do it: the commands, real processes, one is killed on the way."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hosts import Host, Lan

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.timeout(300)]


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    lan = Lan(["desk", "attic", "shed"], tmp_path)
    for host in lan.hosts.values():
        (host.home / "config").mkdir(parents=True)
        (host.home / "config" / "settings.json").write_text(json.dumps({"name": host.name}))
    try:
        yield lan
    finally:
        lan.close()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
    """Ask again and again: processes tell nobody when they are ready."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def helpers(main: Host) -> set[str]:
    listed = json.loads(main.potluck("devices", "--json"))
    return {c["name"] for c in listed if c["paired"] and c["online"] and c["name"] != main.name}


def kill(host: Host) -> None:
    """Kill a computer's node, as a crash of its system would."""
    pid = json.loads((host.home / "state" / "node.json").read_text())["pid"]
    process = psutil.Process(pid)
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def test_a_helper_takes_over_by_a_command_and_one_whose_node_was_killed_follows(lan: Lan) -> None:
    desk, attic, shed = (lan.hosts[name] for name in ("desk", "attic", "shed"))
    for host in (attic, shed):
        token = desk.potluck("invite").strip()
        host.start("-m", "potluck", "worker", "--join", token)
    wait_for(lambda: helpers(desk) == {"attic", "shed"}, "both help")
    kill(shed)  # `potluck worker` starts it again, while the main computer changes

    said = desk.potluck("make-main", "attic", "--yes")

    assert "attic is the main computer now, and this one helps it." in said
    wait_for(lambda: helpers(attic) == {"desk", "shed"}, "all help the new main computer")
    kill(desk)  # what it is now is on its disk
    wait_for(lambda: "desk" not in helpers(attic), "it is gone")
    desk.potluck("devices")  # starts it again
    wait_for(lambda: "desk" in helpers(attic), "it helps again")
