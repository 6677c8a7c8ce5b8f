from dataclasses import replace

import pytest
from chunk_stores import make_store
from model_folders import make_folder

from potluck.model.manifest import make_manifest
from potluck.store import sender
from potluck.store.registry import LocalModel, open_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> LocalModel:
    folder = tmp_path_factory.mktemp("fetch")
    return open_model(make_folder(folder / "model"), cache_dir=folder / "cache")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(sender, "CHUNK_SIZE", 1000)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "weights"


@pytest.fixture
def store(root):
    with make_store(root) as store:
        yield store


@pytest.fixture(scope="module")
def few(model) -> LocalModel:
    """A few of its tensors, large and small."""
    entries = model.manifest.stage(
        [f"model.layers.0.{name}.weight" for name in ("mlp.up_proj", "input_layernorm")]
        + ["model.norm.weight", "lm_head.weight"]
    )
    return replace(
        model,
        manifest=make_manifest(model.manifest.config, entries),
        sources={entry.digest: model.sources[entry.digest] for entry in entries},
    )
