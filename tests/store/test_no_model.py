"""A folder without a model that can be read says what it has, and what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_writer import finish
from model_folders import CONFIG, Tensors, make_folder, tensors_of

from potluck.errors import PotluckError
from potluck.model.text.chat import ChatFormat
from potluck.store.registry import open_model

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n"
MATRIX = "model.layers.0.mlp.up_proj.weight"


def message(folder: Path, tmp_path: Path) -> str:
    with pytest.raises(PotluckError) as caught:
        open_model(folder, cache_dir=tmp_path / "cache")
    return caught.value.message


def only(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("readme.md",), "it has no config.json. Choose the folder"),
        (("adapter_config.json", "adapter_model.safetensors"), "an adapter (LoRA)"),
        (("model_index.json",), "makes pictures or sounds"),
        (("consolidated.safetensors", "tekken.json"), "the params.json that belongs to it"),
        (("mmproj-F16.gguf",), "sees pictures (mmproj)"),
    ],
)
def test_a_folder_without_a_config(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    assert words in message(only(tmp_path / "model", *names), tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "has no weights"),
        (("pytorch_model.bin",), "pickle files only"),
        (("consolidated.00.pth",), "pickle files only"),
        (("a.safetensors", "b.safetensors"), "a.safetensors, b.safetensors, which is not all"),
        (("model-00001-of-00002.safetensors",), "the index that says which belong together"),
        (("model-mmproj-f16.gguf",), "only the part that sees pictures"),
    ],
)
def test_a_folder_without_weights(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    folder = only(tmp_path / "model", "tokenizer.json", *names)
    (folder / "config.json").write_text(json.dumps(CONFIG))

    assert words in message(folder, tmp_path)


def test_weights_need_no_index_if_all_parts_are_there(tmp_path: Path) -> None:
    folder, one = make_folder(tmp_path / "a", shards=3), make_folder(tmp_path / "b")
    (folder / "model.safetensors.index.json").unlink()
    (one / "model.safetensors").rename(one / "model.fp16.safetensors")

    found = [open_model(path, cache_dir=tmp_path / "cache") for path in (folder, one)]

    assert found[0].manifest == found[1].manifest


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def gpt_2_tokenizer(folder: Path) -> None:
    no_tokenizer(folder)
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("")


def pointer(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_text(POINTER)

    return spoil


def web_page(folder: Path) -> None:
    (folder / "config.json").write_text("\n<!DOCTYPE html><html>Log in</html>")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_tokenizer, "has no tokenizer, without which text cannot become tokens: none of"),
        (gpt_2_tokenizer, "do not say how text is cut"),
        (pointer("model.safetensors"), "what git leaves in its place"),
        (pointer("config.json"), "what git leaves in its place"),
        (web_page, "config.json holds a web page"),
    ],
)
def test_a_file_that_is_none_says_why(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    folder = make_folder(tmp_path / "model")
    spoil(folder)

    found = message(folder, tmp_path)

    assert words in found
    assert "the model again" not in found


def test_what_git_leaves_of_a_tokenizer_and_of_a_gguf_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "tokenizer.json").write_text(POINTER)
    file = tmp_path / "a.gguf"
    file.write_text(POINTER)

    with pytest.raises(PotluckError, match="what git leaves in its place"):
        ChatFormat.load(folder)
    assert "what git leaves in its place" in message(file, tmp_path)


def changed(name: str, values: np.ndarray) -> Tensors:
    return {**tensors_of(), name: values}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (changed(MATRIX, np.zeros((48, 4), np.uint32)), "config.json does not say how"),
        (changed(MATRIX, np.zeros((48, 33), np.float32)), "not of the same model"),
        ({"transformer.h.0.w": np.zeros(3, np.float32)}, "not of the same model"),
    ],
)
def test_weights_of_another_model(tmp_path: Path, tensors: Tensors, words: str) -> None:
    found = message(make_folder(tmp_path / "model", tensors=tensors), tmp_path)

    assert words in found
    assert "again" not in found


def test_a_projector_beside_a_model_is_no_second_one(tmp_path: Path) -> None:
    folder = only(tmp_path / "model", "broken.gguf")
    writer = gguf.GGUFWriter(folder / "eyes.gguf", "clip")
    finish(writer)

    assert "broken.gguf" in message(folder, tmp_path)
