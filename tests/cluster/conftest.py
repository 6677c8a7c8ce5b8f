"""What the tests of a cluster share: one small model on disk, and an event loop for a module."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_cluster import Run
from model_folders import CONFIG, make_folder

from potluck.store.registry import LocalModel, open_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A random model of four layers, without a tokenizer that works."""
    base: Path = tmp_path_factory.mktemp("models")
    folder = make_folder(base / "random", config={**CONFIG, "num_hidden_layers": 4})
    return open_model(folder, cache_dir=base / "digests")


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all: a process is too dear to be started for each test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def run(runner: asyncio.Runner) -> Run:
    return lambda work: runner.run(asyncio.wait_for(work, 60))
