"""Two programs on two networked computers, from the first start to the first answer, by clicks alone."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, Lan, can_make_namespaces

pytestmark = [
    pytest.mark.qt,
    pytest.mark.net,
    pytest.mark.slow,
    pytest.mark.skipif(
        not can_make_namespaces(), reason="two computers need two networks: Linux, as root"
    ),
]

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tests" / "support" / "clicked_window.py")
ON_MAIN = ("first-start", "join-code+join-add", "example-0")  # Add, once the digits can be compared
ON_HELPER = ("first-share", "worker-allow")


@contextmanager
def display() -> Iterator[str | None]:
    """Yield the name of a display of its own; None: Xvfb is not installed."""
    if shutil.which("Xvfb") is None:
        yield None
        return
    reading, writing = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1366x768x24", "-nolisten", "tcp"],
        pass_fds=(writing,),
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as answer:
            yield f":{answer.readline().strip()}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def lan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lan]:
    """The networks of two computers with one screen."""
    with display() as screen:
        monkeypatch.setenv("QT_QPA_PLATFORM", "xcb" if screen else "offscreen")
        if screen:
            monkeypatch.setenv("DISPLAY", screen)
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "app"))
        monkeypatch.setenv("LANGUAGE", "en")
        lan = Lan(["desk", "study"], tmp_path)
        try:
            yield lan
        finally:
            lan.close()


def start(host: Host, *names: str) -> "subprocess.Popen[str]":
    """Start the program with a person who clicks these names."""
    return host.start(SCRIPT, str(host.home), *names)


def events(program: "subprocess.Popen[str]", last: str, times: int = 1) -> list[dict[str, Any]]:
    """Return what happened up to the last event of this kind; fail if the program ends before."""
    assert program.stdout is not None
    seen: list[dict[str, Any]] = []
    lines: list[str] = []
    for line in program.stdout:
        lines.append(line)
        if line.startswith("{"):
            seen.append(json.loads(line))
            if sum(event["event"] == last for event in seen) == times:
                return seen
    raise AssertionError("".join(lines))


@pytest.mark.timeout(600)  # ends a hang: it takes 20 s, and two minutes on a busy machine
def test_two_programs_come_to_the_first_answer_with_three_clicks_and_two(lan: Lan) -> None:
    helper = start(lan.hosts["study"], *ON_HELPER)
    main = start(lan.hosts["desk"], *ON_MAIN)

    on_main = events(main, "reply")
    on_helper = events(helper, "click", times=len(ON_HELPER))

    assert [event["name"] for event in on_main if event["event"] == "click"] == list(ON_MAIN)
    reply = on_main[-1]
    assert reply["status"] == "done", reply
    assert reply["text"]
    for name, story in (("main", on_main), ("helper", on_helper)):
        steps = (f"{event.get('name', event['event'])} {event['at']} s" for event in story)
        print(f"{name}: {', '.join(steps)}")
