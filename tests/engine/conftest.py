"""One torch thread, and random models that are made once for all tests of the engine."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import SESSION, Reference, make_model

from potluck.engine.stage import Stage

torch.set_num_threads(1)  # suites that fight over the cores are slow


MakeReference = Callable[..., Reference]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:  # pyright: ignore[reportUnusedFunction]
    """Random numbers are the same in every run of a test."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def make_reference(tmp_path_factory: pytest.TempPathFactory) -> MakeReference:
    """Make a model: `make_reference(variant, seed=…, dtype=…)`; the same one is made once."""
    made: dict[tuple[str, int, torch.dtype], Reference] = {}

    def make(variant: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Reference:
        key = (variant, seed, dtype)
        if key not in made:
            made[key] = make_model(
                variant, tmp_path_factory.mktemp("model"), seed=seed, dtype=dtype
            )
        return made[key]

    return make


@pytest.fixture(scope="session")
def llama(make_reference: MakeReference) -> Reference:
    return make_reference("llama")


@pytest.fixture
def stage(llama: Reference) -> Stage:
    opened = llama.stage()
    opened.open(SESSION, epoch=1)
    return opened
