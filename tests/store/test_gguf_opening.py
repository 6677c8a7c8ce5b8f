"""A GGUF file is found, opened with its words and its further files, or refused in words."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest
from config_layers import windows
from gguf_writer import copy_fields, finish, write_gguf
from model_folders import settle
from tiny_models import Reference

from potluck.errors import (
    BrokenModelError,
    InvalidConfigError,
    PotluckError,
    UnknownArchitectureError,
    UsageError,
)
from potluck.model.gguf.words import TOKENIZER_FIELDS, read_gguf_words
from potluck.model.text.chat import ChatFormat
from potluck.model.text.pooling import load_pooling
from potluck.store import gguf_model
from potluck.store.registry import open_model

Make = Callable[[str], tuple[Reference, Path]]


def test_the_words_are_written_for_whoever_reads_a_models_folder(
    make: Make, tmp_path: Path
) -> None:
    _, folder = make("llama")
    fields = {
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "llama.pooling_type": 1,
    }
    file = write_gguf(folder, tmp_path / "model.gguf", fields=fields)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.words is not None
    assert not (model.words / "tokenizer.json").exists()  # the text process builds it, with limits
    chat = ChatFormat.load(model.words)
    assert model.folder == file
    assert model.words.is_relative_to(tmp_path / "cache")
    assert chat.stop_ids == {2}
    assert chat.decode(chat.encode("a b\n")) == "a b\n"
    assert chat.render_chat([{"role": "user", "content": "hello"}]) == "hello"
    assert load_pooling(model.words) == "mean_tokens"


def test_words_are_made_once_for_a_file_that_stays(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = make("llama")
    file = write_gguf(folder, tmp_path / "model.gguf")
    settle(file)
    made: list[object] = []

    def read_and_count(metadata: Mapping[str, object]) -> dict[str, bytes]:
        made.append(metadata)
        return read_gguf_words(metadata)

    monkeypatch.setattr(gguf_model, "read_gguf_words", read_and_count)
    words = [open_model(file, cache_dir=tmp_path / "cache").words for _ in range(2)]
    assert words[0] == words[1]
    assert len(made) == 1

    write_gguf(folder, file, fields={"tokenizer.chat_template": "changed"})
    assert words[0] is not None
    ChatFormat.load(words[0])
    again = open_model(file, cache_dir=tmp_path / "cache").words
    assert again is not None
    assert not (again / "tokenizer.json").exists()
    assert "changed" in (again / "tokenizer_config.json").read_text()
    assert len(made) == 2


def test_the_words_of_a_file_that_is_gone_are_removed(make: Make, tmp_path: Path) -> None:
    _, folder = make("llama")
    gone, kept = (write_gguf(folder, tmp_path / f"{name}.gguf") for name in ("gone", "kept"))
    settle(gone)  # the other one is so young that its words are made again each time
    words = [open_model(file, cache_dir=tmp_path / "cache").words for file in (gone, kept)]
    old = tmp_path / "cache" / "gguf" / "00ff"
    old.mkdir()
    (old / "made.json").write_text('{"version":1,"stamp":{"size":1,"mtime_ns":2,"ctime_ns":3}}')
    gone.unlink()

    third = write_gguf(folder, tmp_path / "third.gguf")
    words.append(open_model(third, cache_dir=tmp_path / "cache").words)

    assert set((tmp_path / "cache" / "gguf").iterdir()) == set(words[1:])
    assert all((path / TOKENIZER_FIELDS).is_file() for path in words[1:] if path is not None)


def test_a_folder_with_one_file_is_that_model(make: Make, tmp_path: Path) -> None:
    _, folder = make("llama")
    home = tmp_path / "models--org--tiny-GGUF" / "snapshots" / "0a1b"
    home.mkdir(parents=True)
    file = write_gguf(folder, home / "tiny-F16.gguf", kind="F16")
    (home / "mmproj-model.gguf").write_bytes(b"sees pictures")
    (home / "config.json").write_text("{}")  # some have one, and no safetensors

    model = open_model(home, cache_dir=tmp_path / "cache")

    assert (model.folder, model.name) == (file, "org/tiny-GGUF/tiny-F16")


def test_a_folder_with_several_asks_which(make: Make, tmp_path: Path) -> None:
    _, folder = make("llama")
    for name in ("a-Q4_0.gguf", "a-Q8_0.gguf"):
        write_gguf(folder, tmp_path / name)

    with pytest.raises(UsageError, match=r"2 GGUF models: a-Q4_0\.gguf, a-Q8_0\.gguf"):
        open_model(tmp_path, cache_dir=tmp_path / "cache")


def split(file: Path, folder: Path) -> list[Path]:
    """The file in three, as `llama-gguf-split` does it: the first one has the fields."""
    reader = gguf.GGUFReader(file)
    paths = [folder / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for index, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        if index == 0:
            copy_fields(reader, writer)
        else:
            for tensor in reader.tensors[index - 1 :: 2]:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)
    return paths


def test_a_model_in_several_files_is_one(make: Make, tmp_path: Path) -> None:
    _, folder = make("llama")
    whole = write_gguf(folder, tmp_path / "whole.gguf")
    parts = split(whole, tmp_path)

    one, other = (open_model(path, cache_dir=tmp_path / "cache") for path in (whole, parts[0]))

    assert other.manifest == one.manifest
    assert other.name == "m"
    assert {source.path for source in other.sources.values()} == set(parts[1:])


def test_a_part_that_is_missing_is_named(make: Make, tmp_path: Path) -> None:
    _, folder = make("llama")
    parts = split(write_gguf(folder, tmp_path / "whole.gguf"), tmp_path)
    parts[1].unlink()

    with pytest.raises(BrokenModelError, match=r"lacks m-00002-of-00003\.gguf: 1 of the model's 3"):
        open_model(parts[0], cache_dir=tmp_path / "cache")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        open_model(tmp_path / "nowhere.gguf", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"general.architecture": "rwkv6"}, UnknownArchitectureError, "rwkv6.*gemma2, gemma3"),
        ({"llama.embedding_length": "big"}, InvalidConfigError, "llama.embedding_length"),
        ({"llama.block_count": 5}, BrokenModelError, r"lacks tensor model\.layers\.4"),
        ({"llama.attention.value_length": 4}, InvalidConfigError, "value_length"),
        ({"llama.attention.head_count_kv": [2, 4]}, InvalidConfigError, "same for all layers"),
        ({"llama.feed_forward_length": 70}, BrokenModelError, r"\[72, 48\].*\[70, 48\]"),
        ({"llama.rope.scaling.type": "odd"}, InvalidConfigError, "rope.scaling.type"),
        ({"tokenizer.ggml.model": "rwkv"}, InvalidConfigError, "rwkv.*gpt2, llama"),
    ],
)
def test_what_does_not_fit_is_named(
    make: Make,
    tmp_path: Path,
    fields: dict[str, object],
    error: type[Exception],
    words: str,
) -> None:
    _, folder = make("llama")
    file = write_gguf(folder, tmp_path / "model.gguf", fields=fields)

    with pytest.raises(error, match=words):
        open_model(file, cache_dir=tmp_path / "cache")


def test_olmo_3_is_not_taken_for_olmo_2(make: Make, tmp_path: Path) -> None:
    """Both say olmo2."""
    _, folder = make("olmo 2")
    fields: dict[str, object] = {"olmo2.attention.sliding_window": 4096}
    file = write_gguf(folder, tmp_path / "model.gguf", fields=fields)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.config.architecture == "Olmo3ForCausalLM"
    assert windows(model.config) == (4096, 4096, 4096, None)


def test_factors_of_another_type_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("rope_freqs.weight", np.zeros((2, 32), np.float32))
    finish(writer)

    with pytest.raises(BrokenModelError, match=r"rope_freqs.weight as F32 \[2, 32\]"):
        open_model(path, cache_dir=tmp_path / "cache")


def test_damage_in_a_header_is_never_more_than_an_error_of_ours(make: Make, tmp_path: Path) -> None:
    _, folder = make("llama")
    file, other = write_gguf(folder, tmp_path / "model.gguf"), tmp_path / "damaged.gguf"
    good = file.read_bytes()
    end = min(tensor.data_offset for tensor in gguf.GGUFReader(file).tensors)
    random = Random(0)  # always the same damage
    refused = 0

    for _ in range(40):
        damaged = bytearray(good)
        for _ in range(random.choice((1, 1, 2, 5))):
            damaged[random.randrange(end)] = random.choice((0, 1, 255, random.randrange(256)))
        other.write_bytes(damaged)
        try:
            open_model(other, cache_dir=tmp_path / "cache")
        except PotluckError:
            refused += 1

    assert refused > 10  # the others changed a token or a name
