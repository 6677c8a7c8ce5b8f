import json
from pathlib import Path

import pytest

from potluck.model.text.pooling import LAST, POOLING, load_pooling, pooling_of_gguf


def write(folder: Path, text: str) -> Path:
    (folder / POOLING).parent.mkdir()
    (folder / POOLING).write_text(text)
    return folder


def test_a_model_that_says_nothing_takes_the_last_token(tmp_path: Path) -> None:
    assert load_pooling(tmp_path) == LAST


@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens", "cls_token"])
def test_the_mode_that_is_true_is_taken(tmp_path: Path, mode: str) -> None:
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    found = {f"pooling_mode_{name}": name == mode for name in modes}
    text = json.dumps({"word_embedding_dimension": 1024, **found, "include_prompt": True})

    assert load_pooling(write(tmp_path, text)) == mode


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_a_damaged_file_is_ignored(tmp_path: Path, text: str) -> None:
    assert load_pooling(write(tmp_path, text)) == LAST


@pytest.mark.parametrize(
    ("number", "mode"), [(1, "mean_tokens"), (2, "cls_token"), (3, "lasttoken")]
)
def test_a_gguf_file_says_it_by_a_number(tmp_path: Path, number: int, mode: str) -> None:
    metadata = {"general.architecture": "qwen3", "qwen3.pooling_type": number}
    found = pooling_of_gguf(metadata)

    assert found is not None
    assert load_pooling(write(tmp_path, found.decode())) == mode


@pytest.mark.parametrize("number", [0, 4, "1", None, [1]])
def test_any_other_number_says_nothing(number: object) -> None:
    assert pooling_of_gguf({"general.architecture": "a", "a.pooling_type": number}) is None
