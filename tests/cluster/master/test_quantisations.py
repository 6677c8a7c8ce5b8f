"""Of several quantisations of one model, the best one that fits is loaded."""

import dataclasses
from pathlib import Path

import msgspec
import pytest
from fake_cluster import run
from fake_home import Home, small
from gguf_writer import write_gguf
from model_folders import CONFIG, make_folder

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.models import Models, reading
from potluck.cluster.master.planning import Planner
from potluck.errors import NotEnoughMemoryError
from potluck.model.config import ModelConfig
from potluck.model.quantized import Quantization
from potluck.model.schemes import Scheme
from potluck.plan.shape import shape_of

PLAIN = {**CONFIG, "intermediate_size": 64, "rope_parameters": {"rope_theta": 1e4}}
REQUEST = PlanRequest(context=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three quantisations of a model, and a file of it that nobody can read."""
    source = make_folder(tmp_path_factory.mktemp("source"), config=PLAIN)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    for kind in ("BF16", "Q8_0", "Q4_0"):
        write_gguf(source, folder / f"Tiny-{kind}.gguf", kind=kind)
    (folder / "Tiny-F32.gguf").write_bytes(bytes(1 << 20))
    return folder


@pytest.fixture
def planner(home: Home, folder: Path, tmp_path: Path) -> Planner:
    """Plans what a user calls by the name of the folder."""
    home.laptop.devices = (small(home.laptop, 1),)
    models = Models(resolve=lambda query: Path(query or folder), read=reading(tmp_path))
    return Planner(home.computers, models)


def lend(home: Home, scheme: Scheme) -> None:
    """Have the desk lend what the model takes in a scheme."""
    room = shape_of(ModelConfig.from_dict(PLAIN), scheme, context=64).model_memory
    home.desk.devices = (small(home.desk, room),)


@pytest.mark.parametrize(
    ("scheme", "chosen"), [("bf16", "BF16"), ("int8", "Q8_0"), ("int4-head8", "Q4_0")]
)
def test_the_best_one_that_fits_is_opened(
    home: Home, planner: Planner, scheme: Scheme, chosen: str
) -> None:
    lend(home, scheme)

    planned = run(planner.plan(REQUEST, settle=False))

    assert (planned.model.name, planned.scheme) == (f"Tiny-{chosen}", scheme)
    note = planned.note.split("\n")[0]
    assert note.startswith(
        f"Of the model's 4 quantisations in tiny, Tiny-{chosen} is used: the best quality that"
        " fits. Tiny-F32 cannot be read"
    )
    assert ("Tiny-BF16 needs" in note) == (chosen != "BF16")
    assert note.endswith("To use another one, give the path of its file.")


def test_if_none_fits_the_smallest_says_what_it_lacks(home: Home, planner: Planner) -> None:
    home.desk.devices = (small(home.desk, 1),)

    with pytest.raises(NotEnoughMemoryError) as caught:
        run(planner.plan(REQUEST, settle=False))

    smallest = dataclasses.replace(
        ModelConfig.from_dict(PLAIN), quantization=Quantization(method="gguf", bits=4)
    )
    needed = shape_of(smallest, "int4", context=64).model_memory
    assert caught.value.data["needed"] == needed


def test_the_one_that_a_user_names_is_opened(home: Home, planner: Planner, folder: Path) -> None:
    lend(home, "bf16")
    request = msgspec.structs.replace(REQUEST, model=str(folder / "Tiny-Q4_0.gguf"))

    planned = run(planner.plan(request, settle=False))

    assert planned.model.name == "Tiny-Q4_0"
    assert "quantisations" not in planned.note


def test_answers_go_on_with_the_one_that_was_loaded(home: Home, planner: Planner) -> None:
    lend(home, "int8")
    planned = run(planner.plan(REQUEST, settle=False))
    lend(home, "bf16")

    again = run(planner.plan(REQUEST, settle=False, near=planned))

    assert again.model.name == "Tiny-Q8_0"
    assert "quantisations" not in again.note
