"""How smoothly the chat page scrolls and streams: a script, not a test.

Usage: `python tests/bench_chat.py [MESSAGES]`. Offscreen and without a node. It prints milliseconds
in which the GUI thread computes; a frame of 60 in a second has 16.7.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("core", "app", "tests/support")]

from PySide6.QtCore import QCoreApplication, QEvent  # noqa: E402
from PySide6.QtWidgets import QApplication  # noqa: E402
from scripted_window import ScriptedBackend, home, running_model  # noqa: E402

from potluck_app.chats.history import History  # noqa: E402
from potluck_app.chats.values import Conversation, Message  # noqa: E402
from potluck_app.preferences import PreferencesFile  # noqa: E402
from potluck_app.theme import Theme  # noqa: E402
from potluck_app.viewmodels.chat import Chat  # noqa: E402
from potluck_app.views.main_window import MainWindow  # noqa: E402

PROSE = "Potluck pools the computers of one home, and **each** of them computes some layers. " * 4
CODE = "```python\n" + "for n in range(10):\n    print(n)  # a line of code\n" * 6 + "```\n"
CHINESE = (
    "家里的**几台电脑**合在一起、运行一个单独一台无法运行的语言模型、`每台`计算其中的几层。" * 4
)
REPLIES = (PROSE, f"{PROSE}\n\n{CODE}\n{PROSE}", "- one point\n- `another` point\n" * 6)
TOKENS_PER_S, UPDATES_PER_S = 100, 30


def conversation(count: int) -> Conversation:
    messages = tuple(
        Message(
            id=f"m{n}",
            parent=f"m{n - 1}" if n else None,
            role="assistant" if n % 2 else "user",
            text=REPLIES[n // 2 % 3] if n % 2 else f"Question {n}: how does it work?",
        )
        for n in range(count)
    )
    return Conversation(id="long", title="Long", updated=1.0, messages=messages)


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds of some work, and of drawing what came of it."""
    begun = time.thread_time()  # others may use the processor too
    work()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    QCoreApplication.processEvents()
    return 1000 * (time.thread_time() - begun)


def line(name: str, times: list[float]) -> None:
    times = sorted(times)
    late = sum(each > 1000 / 60 for each in times)
    print(
        f"{name:34} median {times[len(times) // 2]:6.1f}  "
        f"99 % {times[int(len(times) * 0.99)]:6.1f}  worst {times[-1]:6.1f}  "
        f"later than a frame: {late} of {len(times)}"
    )


def scrolls(window: MainWindow) -> None:
    bar = window.chat.transcript.verticalScrollBar()
    up = [timed(lambda: bar.setValue(bar.value() - 60)) for _ in range(1500)]
    line("scroll up by 60 pixels", up)
    down = [timed(lambda: bar.setValue(bar.value() + 60)) for _ in range(1500)]
    line("scroll down by 60 pixels", down)
    jumps = [timed(lambda n=n: bar.setValue(bar.maximum() * n // 40)) for n in range(40)]
    line("jump anywhere", jumps)


def streams(window: MainWindow, backend: ScriptedBackend, name: str, text: str) -> None:
    """Stream 3000 tokens of four characters, as many at once as arrive between two updates."""
    window.chat.composer.sent.emit("Write.", ())
    size = 4 * TOKENS_PER_S // UPDATES_PER_S
    text = (text * (12_000 // len(text) + 1))[:12_000]
    pieces = [text[n : n + size] for n in range(0, len(text), size)]
    times = [timed(lambda p=piece: backend.replies[-1].text.emit(p)) for piece in pieces]
    line(f"update of a reply: {name}", times)
    print(f"{'':34} share of the GUI thread {sum(times) / len(times) * UPDATES_PER_S / 10:.0f} %")
    backend.replies[-1].stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    qapp = QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory() as work:
        history = History(Path(work) / "chats.sqlite")
        history.open()
        begun = time.perf_counter()
        history.save(conversation(count))
        print(f"write {count} messages: {1000 * (time.perf_counter() - begun):.0f} ms")
        begun = time.perf_counter()
        read = history.load("long")
        print(f"read them: {1000 * (time.perf_counter() - begun):.0f} ms")
        begun = time.perf_counter()
        found = len(history.search("pools computers"))
        print(f"search in them: {1000 * (time.perf_counter() - begun):.1f} ms ({found} hits)")
        backend = ScriptedBackend()
        chat = Chat(backend, history)
        preferences = PreferencesFile(Path(work) / "window.json")
        preferences.change(mode="master")
        theme = Theme(qapp, "light")
        window = MainWindow(
            theme, backend, chat, preferences, on_share=lambda: None, on_close=lambda: True
        )
        window.show()
        backend.say(home(model=running_model()))
        QCoreApplication.processEvents()
        assert read is not None
        print(f"show them: {timed(lambda: chat._show(chat._opened(read))):.0f} ms")
        scrolls(window)
        print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")
        chat.new()
        streams(window, backend, "paragraphs", PROSE + "\n\n")
        streams(
            window, backend, "a list of 286 items", "- a point with `code` and **more** words\n"
        )
        streams(window, backend, "one long paragraph", PROSE)
        streams(window, backend, "one without spaces (Chinese)", CHINESE)
        streams(window, backend, "one word (base64)", "TWFuIGlzIGRpc3Rpbmd1aXNoZWQ")
        streams(window, backend, "one line of code", "```\n" + "TWFuIGlzIGRpc3Rpbmd1aXNoZWQ" * 500)
        streams(
            window,
            backend,
            "code",
            "for n in range(10):\n    print(n)  # code\n".join(("```py\n", "")),
        )
        chat._show(chat._opened(read))
        streams(window, backend, "below 10,000 messages", PROSE + "\n\n")
        chat.close()
        backend.close()


if __name__ == "__main__":
    main()
