"""A GGUF file is the model that it was made of."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest
import torch
from gguf_writer import finish, write_gguf
from model_folders import settle
from safetensors.torch import load_file, save_file
from tiny_models import CPU, Pipeline, Reference, make_model, stored_tensors
from torch import Tensor

from potluck.engine.linear import PackedLinear
from potluck.engine.weights import StoredTensor, load_weights
from potluck.errors import (
    BrokenModelError,
    InvalidConfigError,
    PotluckError,
    UnknownArchitectureError,
    UsageError,
)
from potluck.model.chat import ChatFormat
from potluck.model.config import ModelConfig
from potluck.model.gguf_words import read_gguf_words
from potluck.model.nearest import nearest_schemes
from potluck.store import gguf_model
from potluck.store.registry import LocalModel, open_model

Make = Callable[[str], tuple[Reference, Path]]
TOKENS = 24
VARIANTS = [
    "llama",
    "llama, one key head, tied, odd",
    "llama, biases",
    "llama 3 scaling",
    "llama, linear scaling",
    "mixtral",
    "qwen 2",
    "qwen 2.5, yarn",
    "qwen 3",
    "qwen 3 moe",
    "phi 3",
    "phi 3.5, long",
    "phi 4 mini, short, partial",
    "gemma 2",
    "gemma 3",
    "olmo 2",
    "smollm 3",
    "granite, tied, biases",
    "exaone 4, hybrid",
]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, tuple[Reference, Path]] = {}

    def make(variant: str) -> tuple[Reference, Path]:
        if variant not in made:
            folder = tmp_path_factory.mktemp("model")
            made[variant] = make_model(variant, folder), folder
        return made[variant]

    return make


def loaded(model: LocalModel, reference: Reference) -> Reference:
    """The same with the tensors of this model."""
    tensors: list[StoredTensor] = []
    for entry in model.manifest.tensors:
        source = model.sources[entry.digest]
        tensors.append(
            StoredTensor(
                name=entry.name,
                dtype=entry.dtype,
                shape=entry.shape,
                digest=entry.digest,
                path=source.path,
                offset=source.offset,
                nbytes=source.nbytes,
            )
        )
    return dataclasses.replace(reference, config=model.config, tensors=tuple(tensors))


def as_in_a_file(config: ModelConfig) -> ModelConfig:
    """With what a file does not say, since llama.cpp knows it of each family."""
    if config.architecture.startswith("Gemma"):
        return dataclasses.replace(config, attention_scale=config.head_dim**-0.5)
    if config.architecture.startswith("SmolLM3"):  # the fourth of four layers has no rotary
        ropes = dataclasses.replace(config.ropes, layers=(0, 0, 0, None))
        return dataclasses.replace(config, ropes=ropes)
    return config


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_file_is_the_model_of_the_safetensors(make: Make, tmp_path: Path, variant: str) -> None:
    reference, folder = make(variant)
    plain = dataclasses.replace(reference, config=as_in_a_file(reference.config))
    file = write_gguf(folder, tmp_path / "model.gguf")

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert_same(model.config, plain.config)
    assert model.config.eos_token_ids == (2,)
    ids = reference.prompt(TOKENS)
    logits = Pipeline(loaded(model, reference), [2]).run(ids)
    torch.testing.assert_close(logits, Pipeline(plain).run(ids), atol=1e-4, rtol=1e-4)


def assert_same(found: ModelConfig, expected: ModelConfig) -> None:
    """In everything but what a file says in another way."""
    aside = ("architecture", "ropes", "unit_offset", "eos_token_ids", "quantization")
    for field in dataclasses.fields(ModelConfig):
        if field.name not in aside:
            values = getattr(found, field.name), getattr(expected, field.name)
            is_number = isinstance(values[1], float)
            assert values[0] == (pytest.approx(values[1], rel=1e-6) if is_number else values[1])
    assert found.ropes.layers == expected.ropes.layers
    for one, other in zip(found.ropes.distinct, expected.ropes.distinct, strict=True):
        assert (one.dim, one.theta) == (other.dim, other.theta)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_logits_are_those_of_the_files_values(make: Make, tmp_path: Path, kind: str) -> None:
    reference, folder = make("llama, whole groups")
    file = write_gguf(folder, tmp_path / "model.gguf", kind=kind)
    rounded = tmp_path / "rounded"
    rounded.mkdir()
    save_file(
        {name: as_stored(name, values, kind) for name, values in weights_of(folder).items()},
        rounded / "model.safetensors",
    )
    plain = dataclasses.replace(reference, tensors=stored_tensors(rounded))

    model = open_model(file, cache_dir=tmp_path / "cache")

    ids = reference.prompt(TOKENS)
    logits = Pipeline(loaded(model, reference)).run(ids)
    torch.testing.assert_close(logits, Pipeline(plain).run(ids), atol=1e-4, rtol=1e-4)


def weights_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def as_stored(name: str, values: Tensor, kind: str) -> Tensor:
    if values.dim() < 2:
        return values
    dtype = gguf.GGMLQuantizationType[kind]
    stored = gguf.quants.quantize(values.numpy(), dtype)
    return torch.from_numpy(gguf.quants.dequantize(stored, dtype)).view(values.shape)


def test_four_bits_stay_as_they_are(make: Make, tmp_path: Path) -> None:
    reference, folder = make("llama, whole groups")
    file = write_gguf(folder, tmp_path / "model.gguf", kind="Q4_0")
    model = open_model(file, cache_dir=tmp_path / "cache")

    assert nearest_schemes(model.config) == ("int4-head8", "int4")
    weights = load_weights(
        model.config,
        range(1),
        embedding=False,
        head=False,
        tensors=loaded(model, reference).tensors,
        scheme="int4",
        device=CPU,
    )

    output = weights.blocks[0].attention.output
    assert isinstance(output, PackedLinear)
    name = "model.layers.0.self_attn.o_proj.weight"
    expected = as_stored(name, weights_of(folder)[name], "Q4_0")
    assert torch.equal(output.weight.dequantise(), expected)


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [
        ("Q8_0", ("int8", "int4-head8", "int4")),
        ("Q4_1", ("int8", "int4-head8", "int4")),
        ("F16", ()),
    ],
)
def test_the_nearest_scheme_follows_the_type(
    make: Make, tmp_path: Path, kind: str, nearest: tuple[str, ...]
) -> None:
    _, folder = make("llama, whole groups")
    file = write_gguf(folder, tmp_path / "model.gguf", kind=kind)

    assert nearest_schemes(open_model(file, cache_dir=tmp_path / "cache").config) == nearest


def test_a_tensor_keeps_its_bytes_and_has_the_name_of_hugging_face(
    make: Make, tmp_path: Path
) -> None:
    _, folder = make("llama, whole groups")
    file = write_gguf(folder, tmp_path / "model.gguf", kind="Q8_0")
    model = open_model(file, cache_dir=tmp_path / "cache")

    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    stored = {entry.name: entry for entry in model.manifest.tensors}
    assert stored["model.layers.1.mlp.down_proj.weight"].dtype == "GGUF_Q8_0"
    for name, other in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ):
        source = model.sources[stored[name].digest]
        data = file.read_bytes()[source.offset : source.offset + source.nbytes]
        assert data == reader[other].data.tobytes()
        assert hashlib.sha256(data).hexdigest() == stored[name].digest


def test_the_words_are_written_for_whoever_reads_a_models_folder(
    make: Make, tmp_path: Path
) -> None:
    _, folder = make("llama")
    fields = {"tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    file = write_gguf(folder, tmp_path / "model.gguf", fields=fields)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.words is not None
    chat = ChatFormat.load(model.words)
    assert model.folder == file
    assert model.words.is_relative_to(tmp_path / "cache")
    assert chat.stop_ids == {2}
    assert chat.decode(chat.encode("a b\n")) == "a b\n"
    assert chat.render_chat([{"role": "user", "content": "hello"}]) == "hello"


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
    again = open_model(file, cache_dir=tmp_path / "cache").words
    assert again is not None
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
    assert all((path / "tokenizer.json").is_file() for path in words[1:] if path is not None)


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


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)


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


def test_experts_may_stand_each_by_itself(make: Make, tmp_path: Path) -> None:
    reference, folder = make("mixtral")
    whole = write_gguf(folder, tmp_path / "whole.gguf")
    reader, path = gguf.GGUFReader(whole), tmp_path / "old.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    copy_fields(reader, writer)
    for tensor in reader.tensors:
        if "_exps" not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        for expert, matrix in enumerate(tensor.data):
            writer.add_tensor(tensor.name.replace("_exps", f".{expert}"), matrix)
    finish(writer)

    one, other = (open_model(file, cache_dir=tmp_path / "cache") for file in (whole, path))

    assert other.manifest == one.manifest
    assert loaded(other, reference).config.experts is not None


def test_olmo_3_is_not_taken_for_olmo_2(make: Make, tmp_path: Path) -> None:
    _, folder = make("olmo 2")
    fields: dict[str, object] = {"olmo2.attention.sliding_window": 4096}
    file = write_gguf(folder, tmp_path / "model.gguf", fields=fields)

    with pytest.raises(UnknownArchitectureError, match="olmo3"):
        open_model(file, cache_dir=tmp_path / "cache")


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


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        open_model(tmp_path / "nowhere.gguf", cache_dir=tmp_path / "cache")
