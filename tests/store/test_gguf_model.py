"""A GGUF file is the model that it was made of."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from config_layers import attention, with_each_mixer, with_mixers
from fast_families import each_of
from gguf_writer import copy_fields, finish, quantise_blocks, write_gguf
from safetensors.torch import load_file, save_file
from tiny_models import CPU, Pipeline, Reference, loaded, make_model, off, stored_tensors
from torch import Tensor

from potluck.engine.layers.linear import Linear, PackedLinear
from potluck.engine.layers.mlp import PackedMlp
from potluck.engine.loading.weights import load_weights
from potluck.model.config import ModelConfig
from potluck.model.formats import INT4_OFFSET, INT4_SUPER, INT8, PackedFormat
from potluck.model.mixing.rope import QueryScale
from potluck.model.nearest import nearest_schemes
from potluck.store.registry import open_model

Make = Callable[[str], tuple[Reference, Path]]


TOKENS = 24


VARIANTS = [
    "llama",
    "llama, one key head, tied, odd",
    "llama, biases",
    "llama 3 scaling",
    "llama, linear scaling",
    "llama 4 scout",
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
    "gemma 4",
    "glm 4",
    "ernie 4.5, biases, tied",
    "ernie 4.5 moe",
    "hunyuan",
    "hunyuan a13b",
    "gemma 4, experts",
    "gemma 4, values of their own",
    "gemma 4 e2b",
    "olmo 2",
    "olmo 3",
    "gemma",
    "seed oss",
    "ministral 3, alone",
    "smollm 3",
    "command r",
    "command a",
    "granite, tied, biases",
    "granite 3 moe, shared expert",
    "step 3.5, no scaling, text of a model with pictures",
    "mimo 2 flash",
    "trinity",
    "laguna",
    "laguna, gates of each number",
    "granite 4",
    "granite 4, dense, groups, rope",
    "mistral 4",
    "glm 4 9b",
    "solar open",
    "deepseek 3.2",
    "minimax m3, text of a model with pictures",
    "hy 3",
    "mellum 2",
    "youtu",
    "exaone 4, hybrid",
    "qwen 2 moe, gated shared expert",
    "olmoe",
    "minimax m2",
    "glm 4.5",
    "dots 1, groups",
    "k-exaone",
    "deepseek 2 lite",
    "deepseek 2, groups",
    "glm 4.7 flash",
    "glm 5",
    "glm 5.2",
    "arcee",
    "apertus",
    "lfm 2",
    "lfm 2 moe",
    "falcon h1",
    "falcon h1, normed",
    "nemotron h",
    "nemotron h, dense, biases",
    "starcoder 2",
    "stablelm 2",
    "phi 2",
    "phi 3.5 moe, as published",
    "minitron",
    "jais 2",
    "kimi linear",
    "qwen 3 next",
    "qwen 3.5",
    "qwen 3.5 moe",
    "qwen 4, n-grams of one layer",
]


LLAMA_4 = QueryScale(beta=0.1, original_max_position=8192, first=1)
# The order of parts of a matrix, which is another one in these files, and which are one.
IN_FILES = (
    "is_ordered", "has_joined_inputs", "has_tiled_heads", "has_whole_decays", "fused", "row_scales", "shared_names",
    "parts", "rows", "shards", "is_split", "learned", "numbers",
)  # fmt: skip


def as_in_a_file(config: ModelConfig) -> ModelConfig:
    """With what a file does not say, since llama.cpp knows it of each family."""
    if config.unit_offset:
        return with_mixers(config, scale=config.head_dim**-0.5)
    if config.architecture.startswith("Llama4"):
        ropes = config.ropes[0], dataclasses.replace(config.ropes[1], query_scale=LLAMA_4)
        windows = [attention(layer.mixer).window and 8192 for layer in config.layers]
        mixers = [
            dataclasses.replace(attention(layer.mixer), window=window, rope=0 if window else 1)
            for layer, window in zip(config.layers, windows, strict=True)
        ]
        return dataclasses.replace(with_each_mixer(config, mixers), ropes=ropes)
    if config.architecture.startswith("SmolLM3"):  # the fourth of four layers has no rotary
        places = zip(config.layers, (0, 0, 0, None), strict=True)
        mixers = [dataclasses.replace(attention(layer.mixer), rope=rope) for layer, rope in places]
        return with_each_mixer(config, mixers)
    return config


@pytest.mark.usefixtures("torch_alone")
@each_of(VARIANTS)
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


@pytest.mark.parametrize("variant", ["qwen 2", "llama"])
def test_a_file_may_have_queries_keys_and_values_in_one_tensor(
    make: Make, tmp_path: Path, variant: str
) -> None:
    reference, folder = make(variant)
    file = write_gguf(folder, tmp_path / "model.gguf", joins_heads=True)

    model = open_model(file, cache_dir=tmp_path / "cache")

    ids = reference.prompt(TOKENS)
    logits = Pipeline(loaded(model, reference)).run(ids)
    torch.testing.assert_close(logits, Pipeline(reference).run(ids), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("torch_alone")
def test_a_file_of_muse_glimmer_has_the_factor_of_queries_as_weights_of_a_norm(
    tmp_path: Path,
) -> None:
    """What llama.cpp adds to the squares of norms after attention and MLP, no file says."""
    folder = tmp_path / "model"
    folder.mkdir()
    reference = make_model(
        "muse glimmer, text of a model with pictures", folder, changes={"post_norm_eps": 1e-8}
    )
    file = write_gguf(folder, tmp_path / "model.gguf")

    model = open_model(file, cache_dir=tmp_path / "cache")

    ids = reference.prompt(TOKENS)
    logits = Pipeline(loaded(model, reference), [2]).run(ids)
    torch.testing.assert_close(logits, Pipeline(reference).run(ids), atol=1e-4, rtol=1e-4)


def test_a_file_may_have_gates_and_ups_of_experts_in_one_tensor(make: Make, tmp_path: Path) -> None:
    reference, folder = make("qwen 3.5 moe")
    file = write_gguf(folder, tmp_path / "model.gguf", joins_experts=True)

    model = open_model(file, cache_dir=tmp_path / "cache")

    ids = reference.prompt(TOKENS)
    logits = Pipeline(loaded(model, reference)).run(ids)
    torch.testing.assert_close(logits, Pipeline(reference).run(ids), atol=1e-4, rtol=1e-4)


def assert_same(found: ModelConfig, expected: ModelConfig) -> None:
    """In everything but what a file says in another way."""
    aside = ("architecture", "ropes", "unit_offset", "eos_token_ids", "quantization")
    if expected.architecture.startswith("FalconH1"):  # whose files have these in matrices
        aside += ("embedding_multiplier", "logits_divisor")
    for field in dataclasses.fields(ModelConfig):
        if field.name not in aside:
            assert_close(getattr(found, field.name), getattr(expected, field.name))
    for one, other in zip(found.ropes, expected.ropes, strict=True):
        assert one.dim == other.dim
        assert_close(one.theta, other.theta)


def assert_close(found: Any, expected: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            if field.name in IN_FILES:
                continue
            assert_close(getattr(found, field.name), getattr(expected, field.name))
    else:
        is_number = isinstance(expected, float)
        assert found == (pytest.approx(expected, rel=1e-6) if is_number else expected)


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
    stored = quantise_blocks(values.numpy(), dtype)
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

    output = weights.blocks[0].mixer_matrices[1]
    assert isinstance(output, PackedLinear)
    name = "model.layers.0.self_attn.o_proj.weight"
    expected = as_stored(name, weights_of(folder)[name], "Q4_0")
    assert torch.equal(output.weight.dequantise(), expected)


# As llama.cpp's Q4_K_M mixes them, which has Q6_K where this has Q8_0; and a head of 4 bits.
MIXED = {
    "output.weight": "Q8_0",
    "token_embd.weight": "Q8_0",
    "blk.0.attn_v.weight": "Q8_0",
    "blk.0.ffn_down.weight": "Q8_0",
    "blk.3.attn_v.weight": "Q8_0",
    "blk.3.ffn_down.weight": "Q8_0",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "kind", "kinds", "runs"),
    [
        ("llama, whole groups", "Q4_1", {}, 1),
        ("llama, blocks of 256", "Q4_K", {}, 1),
        ("llama, blocks of 256", "Q4_K", MIXED, 3),
    ],
)
def test_offsets_stay_as_they_are(
    make: Make, tmp_path: Path, variant: str, kind: str, kinds: Mapping[str, str], runs: int
) -> None:
    reference, folder = make(variant)
    file = write_gguf(folder, tmp_path / "model.gguf", kind=kind, kinds=kinds)
    model = loaded(open_model(file, cache_dir=tmp_path / "cache"), reference)
    ids, sizes = reference.prompt(TOKENS), (20, 1, 1, 1, 1)

    whole = Pipeline(model, [], "int4-offset").run_in_pieces(ids, sizes)
    cut = Pipeline(model, [1, 3], "int4-offset").run_in_pieces(ids, sizes)
    weights = load_weights(
        model.config, range(4), embedding=True, head=True, tensors=model.tensors,
        scheme="int4-offset", device=CPU,
    )  # fmt: skip

    assert nearest_schemes(model.config)[0] == "int4-offset"
    assert torch.equal(whole, cut)
    assert len(weights.runs) == runs
    coarse = INT4_SUPER if kind == "Q4_K" else INT4_OFFSET
    assert format_of(weights.lm_head) == (INT8 if kinds else coarse)
    for layer, block in enumerate(weights.blocks):
        higher = INT8 if kinds and layer in (0, 3) else coarse
        assert isinstance(block.mlp, PackedMlp)
        matrices = (*block.mixer_matrices, block.mlp.gate_up, block.mlp.down)
        held = [format_of(each) for each in matrices]
        assert held == [higher, coarse, coarse, higher]
    output = weights.blocks[1].mixer_matrices[1]
    assert isinstance(output, PackedLinear)
    name = "model.layers.1.self_attn.o_proj.weight"
    stored = as_stored(name, weights_of(folder)[name], kind)
    assert torch.equal(output.weight.dequantise(), stored)
    exact = Pipeline(model).run(ids)
    assert off(whole, exact) < 1.5 * off(Pipeline(model, [], "int8").run(ids), exact)


def format_of(linear: Linear | None) -> PackedFormat:
    assert isinstance(linear, PackedLinear)
    return linear.weight.format


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [
        ("Q8_0", ("int8", "int4-head8", "int4")),
        ("Q4_1", ("int4-offset", "int4-head8", "int4")),
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
