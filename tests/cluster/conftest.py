"""What the tests of a cluster share: one small model on disk, an event loop for a module, and two nodes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fake_cluster import Run, within
from fake_home import Home
from forked import forking
from loop_watch import watching
from model_folders import CONFIG, make_folder
from packing_engine import Workplace
from pairing_sides import Side, Sides
from whole_nodes import UnusedEngine, find_in_memory, paired
from worker_bench import Bench

from potluck.cluster.node import Node
from potluck.ids import Digest
from potluck.store.chunks import ChunkStore
from potluck.store.registry import LocalModel, open_model

IN_NODES = [
    "potluck.cluster.stage",
    "potluck.cluster.text.process",
    "potluck.cluster.text.grammar_process",
]
IN_TESTS = ["patient_stage", "rank_process"]


@pytest.fixture(scope="session", autouse=True)
def _forked() -> Iterator[None]:
    """To import torch for each stage process would take most of these tests' time."""
    with forking(IN_NODES, IN_TESTS):
        yield


@pytest.fixture(autouse=True)
def free_loop() -> Iterator[None]:
    """A test fails when something computes in its event loop for so long that heartbeats suffer."""
    with watching() as blocking:
        yield
    assert not blocking, "\n".join(blocking)


@pytest.fixture
def removed_in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test fails when its event loop removes a tensor: Windows may keep the file, which is waited for."""
    discard, by_loop = ChunkStore.discard, list[Digest]()

    def discarded(store: ChunkStore, digest: Digest) -> bool:
        if threading.current_thread() is threading.main_thread():
            by_loop.append(digest)
        return discard(store, digest)

    monkeypatch.setattr(ChunkStore, "discard", discarded)
    yield
    assert not by_loop


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A random model of four layers, without a tokenizer that works."""
    base: Path = tmp_path_factory.mktemp("models")
    folder = make_folder(base / "random", config={**CONFIG, "num_hidden_layers": 4})
    return open_model(folder, cache_dir=base / "digests")


@pytest.fixture
def home(model: LocalModel) -> Home:
    return Home(model)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    """A master to be, and a worker to be."""
    return Side("Desk", tmp_path), Side("Laptop", tmp_path)


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(tmp_path) as workplace:
        yield workplace


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all: a process is too dear to be started for each test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def run(runner: asyncio.Runner) -> Run:
    return lambda work: runner.run(within(60, work))


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nodes that find each other in memory, stay on loopback and have this small guide."""
    from byte_model import make_byte_model  # torch and transformers, which few tests need

    guide = make_byte_model(tmp_path_factory.mktemp("guide"))
    with pytest.MonkeyPatch.context() as patch:
        find_in_memory(patch, guide)
        yield guide


@pytest.fixture
def no_engine(guide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes as `guide` has them, which compute nothing."""
    monkeypatch.setattr("potluck.cluster.processes.supervisor.StageHandle", UnusedEngine)


@pytest.fixture(scope="module")
def pair(
    runner: asyncio.Runner, guide: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, Node]]:
    """A desk and a laptop, paired by a token."""
    nodes = AsyncExitStack()
    start = nodes.enter_async_context(paired(tmp_path_factory.mktemp("nodes")))
    yield runner.run(within(60, start))
    runner.run(nodes.aclose())


@pytest.fixture
def desk(pair: tuple[Node, Node]) -> Node:
    return pair[0]


@pytest.fixture
def laptop(pair: tuple[Node, Node]) -> Node:
    return pair[1]
