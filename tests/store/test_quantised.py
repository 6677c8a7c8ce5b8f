"""What became of matrices is remembered, and what was damaged is forgotten."""

from pathlib import Path

import msgspec
import pytest

from potluck.ids import ModelId
from potluck.model.schemes import PACKING_VERSION
from potluck.store.quantised import Packed, recall, remember

MODEL = ModelId("ab" * 32)
UP, DOWN = Packed("01" * 32, 10), Packed("02" * 32, 20)


def test_what_was_remembered_is_recalled(tmp_path: Path) -> None:
    assert recall(tmp_path, MODEL) == {}

    remember(tmp_path / "new", MODEL, {"4 up": UP})
    remember(tmp_path / "new", MODEL, {"4 down": DOWN})

    assert recall(tmp_path / "new", MODEL) == {"4 up": UP, "4 down": DOWN}
    assert recall(tmp_path / "new", ModelId("cd" * 32)) == {}


def test_the_last_word_counts(tmp_path: Path) -> None:
    remember(tmp_path, MODEL, {"4 up": UP})
    remember(tmp_path, MODEL, {"4 up": DOWN})

    assert recall(tmp_path, MODEL) == {"4 up": DOWN}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"4 up": 1}', b"\xff"])
def test_a_damaged_memory_is_none(tmp_path: Path, data: bytes) -> None:
    remember(tmp_path, MODEL, {"4 up": UP})
    (file,) = tmp_path.iterdir()
    file.write_bytes(data)

    assert recall(tmp_path, MODEL) == {}
    remember(tmp_path, MODEL, {"4 down": DOWN})
    assert recall(tmp_path, MODEL) == {"4 down": DOWN}


def test_what_is_no_digest_is_never_a_path(tmp_path: Path) -> None:
    remember(tmp_path, MODEL, {"4 up": UP})
    (file,) = tmp_path.iterdir()
    file.write_bytes(msgspec.json.encode({"4 up": Packed("../../etc/passwd", 1)}))

    assert recall(tmp_path, MODEL) == {}


def test_another_packing_remembers_on_its_own(tmp_path: Path) -> None:
    remember(tmp_path, MODEL, {"4 up": UP})
    (file,) = tmp_path.iterdir()

    file.rename(tmp_path / f"{MODEL}-{PACKING_VERSION - 1}.json")

    assert recall(tmp_path, MODEL) == {}


def test_a_folder_that_cannot_be_written_costs_the_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    remember(tmp_path / "file", MODEL, {"4 up": UP})

    assert recall(tmp_path / "file", MODEL) == {}
