from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chunk_stores import make_store
from model_folders import make_folder

from potluck.model.manifest import make_manifest
from potluck.store.registry import LocalModel, open_model

if TYPE_CHECKING:
    from tiny_models import Reference


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> LocalModel:
    folder = tmp_path_factory.mktemp("fetch")
    return open_model(make_folder(folder / "model"), cache_dir=folder / "cache")


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


@pytest.fixture(scope="session")
def make(
    tmp_path_factory: pytest.TempPathFactory,
) -> "Callable[[str], tuple[Reference, Path]]":
    """Make a random model, and the folder it stands in; the same one is made once."""
    from tiny_models import make_model  # torch and transformers, which few tests need

    made: dict[str, tuple[Reference, Path]] = {}

    def make(variant: str) -> "tuple[Reference, Path]":
        if variant not in made:
            folder = tmp_path_factory.mktemp("model")
            made[variant] = make_model(variant, folder), folder
        return made[variant]

    return make
