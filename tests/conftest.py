"""What every test shares: one torch thread, no display, a fake node, and the fast tier."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import shared_kernels

from potluck.heap import without_collection

if TYPE_CHECKING:
    from fake_backend import Server

_SCREEN = Path(__file__).parent / "support" / "screen.json"  # 1920 x 1080; else it is 800 x 800
os.environ.setdefault("QT_QPA_PLATFORM", f"offscreen:configfile={_SCREEN}")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # suites that fight over two cores are slow and flaky
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A shell starts background commands with SIGINT ignored, and their children inherit that: no Ctrl-C
# that a test sends would reach a command.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="leave out what is marked slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    shared_kernels.set_folder(config.rootpath / ".pytest_cache" / "kernels")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with without_collection():  # what is imported and collected stays
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests go first, so that no process is at the end left alone with a long one."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    if config.getoption("--fast"):
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    long = {item.path for item in slow}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Have Python's collection pass over the tests themselves: ten thousand of them are there to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _kernels_of_the_run() -> None:
    """Compile each kernel once for all tests and processes."""
    if "potluck.engine.kernels" in sys.modules:
        shared_kernels.keep()


@pytest.fixture(scope="module", autouse=True)
def _collect_in_this_thread() -> Iterator[None]:
    """Take the place of Python's own collection, which the tests of the window have switched off."""
    yield
    if not gc.isenabled():
        gc.collect(1)  # all that was made since the last time


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch computes the layers, as it does on a GPU. Without this, kernels do, which are compiled for each shape."""
    from chosen_kernels import compute_with  # torch, which few tests need

    compute_with(monkeypatch)


@pytest.fixture(scope="module")
def running() -> "Iterator[Server]":
    """The real HTTP server of a fake node."""
    from fake_backend import serving  # a web server, which few tests need

    with serving() as server:
        yield server


@pytest.fixture
def server(running: "Server") -> "Server":
    """The same, as if it had just been started."""
    running.reset()
    return running
