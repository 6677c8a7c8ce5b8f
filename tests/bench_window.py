"""How soon the window is on the screen, what memory it takes, and what it computes while nothing happens: a script, not a test.

Usage: `python tests/bench_window.py [--rounds N] [--idle SECONDS] [CHECKOUT …]`. On a display of its own if Xvfb is
installed, else offscreen; with 300 chats and a real node. Several checkouts start in turns; without one, this one starts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
CHATS = 300
BEGUN = "POTLUCK_BENCH_BEGUN"  # monotonic seconds


def show() -> None:
    """Run the program, and print when its window is on the screen, and when its node answers."""
    import potluck_app.__main__ as program  # isort: skip - first: it turns the collector off
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    from potluck_app.application import Application

    begun = float(os.environ[BEGUN])

    class Watched(Application):
        def start(self, *, worker: bool = False, hidden: bool = False) -> None:
            self.look = QTimer(self, interval=2)
            self.look.timeout.connect(self.find)
            self.look.start()
            self.backend.connection_changed.connect(self.tell)
            super().start(worker=worker, hidden=hidden)

        def find(self) -> None:
            handles = [each.windowHandle() for each in QApplication.topLevelWidgets()]
            if any(handle is not None and handle.isExposed() for handle in handles):
                self.look.stop()
                self.tell("shown")

        def tell(self, what: str, _sentence: str = "") -> None:
            print(json.dumps([what, time.monotonic() - begun]), flush=True)

    program.Application = Watched
    raise SystemExit(program.main(["--home", sys.argv[2]]))


@contextmanager
def display() -> Iterator[dict[str, str]]:
    """Yield the variables with which Qt finds the display."""
    if shutil.which("Xvfb") is None:
        yield {"QT_QPA_PLATFORM": "offscreen"}
        return
    reading, writing = os.pipe()
    command = [
        "Xvfb",
        "-displayfd",
        str(writing),
        "-screen",
        "0",
        "1366x768x24",
        "-nolisten",
        "tcp",
    ]
    server = subprocess.Popen(command, pass_fds=(writing,), stderr=subprocess.DEVNULL)
    os.close(writing)
    try:
        with os.fdopen(reading) as answer:
            yield {"QT_QPA_PLATFORM": "xcb", "DISPLAY": f":{answer.readline().strip()}"}
    finally:
        server.terminate()
        server.wait()


def prepare(home: Path) -> None:
    """Write 300 chats and the choice to chat here."""
    sys.path[:0] = [str(ROOT / name) for name in ("core", "app")]
    from potluck.settings import Folders
    from potluck_app.chats.history import History
    from potluck_app.chats.values import Conversation, Message
    from potluck_app.preferences import PreferencesFile

    folders = Folders.of(home)
    folders.config.mkdir(parents=True)
    folders.data.mkdir(parents=True)
    PreferencesFile(folders.config / "window.json").change(mode="master")
    history = History(folders.data / "chats.sqlite")
    history.open()
    text = (
        "Potluck pools the computers of one home, and **each** of them computes some layers. " * 8
    )
    for number in range(CHATS):
        name = f"c{number}"
        asked = Message(id=f"{name}a", parent=None, role="user", text=f"Question {number}?")
        said = Message(id=f"{name}b", parent=asked.id, role="assistant", text=text)
        chat = Conversation(id=name, title=asked.text, updated=number, messages=(asked, said))
        history.save(chat)


def start(checkout: Path, variables: dict[str, str], idle_s: float) -> dict[str, float]:
    """Start the window once. Returns seconds, MB, and the percent of a processor while idle."""
    with tempfile.TemporaryDirectory() as work:
        home = Path(work) / "home"
        prepare(home)
        paths = os.pathsep.join(str(checkout / name) for name in ("core", "app"))
        environ = {**os.environ, **variables, "PYTHONPATH": paths, BEGUN: str(time.monotonic())}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
        command = [sys.executable, __file__, "--show", str(home)]
        window = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        try:
            return measured(window, idle_s)
        finally:
            window.terminate()
            window.wait()
            end_node(home / "state" / "node.json")


def measured(window: "subprocess.Popen[str]", idle_s: float) -> dict[str, float]:
    """Read what the window says until it is there and connected, then look at its process."""
    process, found = psutil.Process(window.pid), dict[str, float]()
    assert window.stdout is not None
    for line in window.stdout:
        what, at = json.loads(line)
        if what == "shown":
            times = process.cpu_times()
            found["processor s"] = times.user + times.system
        found[f"{what} s"] = at
        if {"shown s", "connected s"} <= found.keys():
            break
    time.sleep(8)  # what is made when there is time, and the first questions to the node
    before = process.cpu_times()
    time.sleep(idle_s)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    memory = process.memory_full_info()
    return {
        **found,
        "MB": memory.rss / 1e6,
        "MB own": memory.uss / 1e6,
        "idle %": 100 * used / idle_s,
    }


def end_node(file: Path) -> None:
    """End the node that the window has started."""
    if file.exists():
        node = psutil.Process(json.loads(file.read_text())["pid"])
        node.terminate()
        node.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=10)
    parser.add_argument("checkout", nargs="*", type=Path, default=[ROOT])
    options = parser.parse_args()
    seen: dict[Path, list[dict[str, float]]] = {each: [] for each in options.checkout}
    with ExitStack() as stack:
        variables: dict[str, Any] = stack.enter_context(display())
        variables["PYTHONPYCACHEPREFIX"] = stack.enter_context(tempfile.TemporaryDirectory())
        for checkout in seen:
            start(checkout.resolve(), variables, 1)  # writes the bytecode
        for _ in range(options.rounds):
            for checkout, found in seen.items():
                found.append(start(checkout.resolve(), variables, options.idle))
    for checkout, found in seen.items():
        print(f"{checkout} ({variables['QT_QPA_PLATFORM']}, {len(found)} starts: least, median)")
        for name in found[0]:
            values = sorted(each[name] for each in found)
            print(f"  {name:14} {values[0]:8.2f} {values[len(values) // 2]:8.2f}")


if __name__ == "__main__":
    show() if sys.argv[1:2] == ["--show"] else main()
