"""What the tests of a cluster share: one small model on disk."""

from pathlib import Path

import pytest
from model_folders import CONFIG, make_folder

from potluck.store.registry import LocalModel, open_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A random model of four layers, without a tokenizer that works."""
    base: Path = tmp_path_factory.mktemp("models")
    folder = make_folder(base / "random", config={**CONFIG, "num_hidden_layers": 4})
    return open_model(folder, cache_dir=base / "digests")
