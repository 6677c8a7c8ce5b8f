"""Weights are loaded once, checked while they are read, and told apart from what is broken."""

import dataclasses
import gc
import hashlib
import json
import math
import shutil
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CPU, Reference, config_of, stored_tensors
from torch import Tensor

from potluck.engine.layers.linear import FloatEmbedding, FloatLinear
from potluck.engine.layers.mlp import GatedMlp, MoE
from potluck.engine.loading.reading import PIECE, StoredTensor
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.targets import TensorTarget
from potluck.engine.loading.weights import load_weights, random_weights
from potluck.errors import BrokenModelError, IntegrityError, InvalidLayersError, OutOfMemoryError
from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme

MakeReference = Callable[..., Reference]


def load(
    reference: Reference,
    *,
    layers: range = range(4),
    embedding: bool = True,
    head: bool = True,
    tensors: tuple[StoredTensor, ...] | None = None,
    scheme: Scheme = "f32",
    progress: Callable[[int, int], None] | None = None,
) -> StageWeights:
    return load_weights(
        reference.config,
        layers,
        embedding=embedding,
        head=head,
        tensors=reference.tensors if tensors is None else tensors,
        scheme=scheme,
        device=CPU,
        progress=progress,
    )


def replaced(reference: Reference, name: str, **changes: object) -> tuple[StoredTensor, ...]:
    return tuple(
        dataclasses.replace(tensor, **changes) if tensor.name == name else tensor
        for tensor in reference.tensors
    )


@pytest.fixture
def damaged(llama: Reference, tmp_path: Path) -> Reference:
    """Copy the model into files of its own, which a test may damage."""
    path = tmp_path / "model.safetensors"
    shutil.copy(llama.tensors[0].path, path)
    tensors = tuple(dataclasses.replace(tensor, path=path) for tensor in llama.tensors)
    return dataclasses.replace(llama, tensors=tensors)


def test_projections_that_are_read_together_lie_together(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("llama, biases")
    state: dict[str, Tensor] = reference.model.state_dict()

    block = load(reference).blocks[1]

    prefix = "model.layers.1."
    assert isinstance(block.mlp, GatedMlp)
    for linear, parts in (
        (block.mixer_matrices[0], ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        (block.mlp.gate_up, ("mlp.gate_proj", "mlp.up_proj")),
        (block.mixer_matrices[1], ("self_attn.o_proj",)),
        (block.mlp.down, ("mlp.down_proj",)),
    ):
        weights = [state[f"{prefix}{part}.weight"] for part in parts]
        biases = [state[f"{prefix}{part}.bias"] for part in parts]
        assert isinstance(linear, FloatLinear)
        assert linear.bias is not None
        assert torch.equal(linear.weight, torch.cat(weights))
        assert torch.equal(linear.bias, torch.cat(biases))


def test_a_tied_head_is_the_embedding_itself(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 2")

    weights = load(reference)

    assert isinstance(weights.lm_head, FloatLinear)
    assert isinstance(weights.embedding, FloatEmbedding)
    assert weights.lm_head.weight.data_ptr() == weights.embedding.weight.data_ptr()
    assert weights.nbytes == sum(p.nbytes for p in reference.model.parameters())


def test_a_tied_head_alone_has_its_own_copy_and_no_embedding(
    make_reference: MakeReference,
) -> None:
    weights = load(make_reference("qwen 2"), layers=range(3, 4), embedding=False)

    assert weights.embedding is None
    assert isinstance(weights.lm_head, FloatLinear)
    assert weights.lm_head.weight.shape == (131, 48)


def test_a_stage_in_the_middle_reads_its_layers_alone(llama: Reference) -> None:
    totals: list[tuple[int, int]] = []

    weights = load(
        llama,
        layers=range(1, 3),
        embedding=False,
        head=False,
        progress=lambda done, total: totals.append((done, total)),
    )

    assert (weights.embedding, weights.norm, weights.lm_head) == (None, None, None)
    assert weights.nbytes == totals[-1][1]


def test_progress_counts_every_byte_once_and_in_order(llama: Reference) -> None:
    seen: list[tuple[int, int]] = []

    load(llama, progress=lambda done, total: seen.append((done, total)))

    total = sum(tensor.nbytes for tensor in llama.tensors)
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert len({total for _, total in seen}) == 1


def test_progress_that_raises_stops_the_load(llama: Reference) -> None:
    class Stopped(Exception):  # noqa: N818
        pass

    def stop(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        load(llama, progress=stop)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("scheme", "computed"),
    [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)],
)
def test_every_stored_dtype_is_converted_to_every_computed_one(
    llama: Reference, tmp_path: Path, stored: torch.dtype, scheme: Scheme, computed: torch.dtype
) -> None:
    # One matrix is larger than a piece, and ends within one.
    config = dataclasses.replace(llama.config, vocab_size=PIECE // 48 // 2 * 3 + 5)
    matrix = torch.randn(config.vocab_size, 48).to(stored)
    save_file({"model.embed_tokens.weight": matrix}, tmp_path / "model.safetensors")

    weights = load_weights(
        config,
        range(0),
        embedding=True,
        head=False,
        tensors=stored_tensors(tmp_path),
        scheme=scheme,
        device=CPU,
    )

    assert isinstance(weights.embedding, FloatEmbedding)
    assert torch.equal(weights.embedding.weight, matrix.to(computed))


def test_a_changed_byte_is_found_and_its_digest_named(damaged: Reference) -> None:
    victim = damaged.tensors[5]
    with victim.path.open("r+b") as file:
        file.seek(victim.offset + victim.nbytes - 1)
        last = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([last[0] ^ 1]))

    with pytest.raises(IntegrityError, match=victim.name) as caught:
        load(damaged)
    assert caught.value.data["digest"] == victim.digest


def test_a_load_that_failed_holds_nothing_of_what_it_had_loaded(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is free at once, without a garbage collection: the next load asks what is free."""
    held: list[weakref.ref[Tensor]] = []

    class NotedTarget(TensorTarget):
        def __init__(self, tensor: Tensor, *args: Any) -> None:
            super().__init__(tensor, *args)
            held.append(weakref.ref(tensor))

    monkeypatch.setattr("potluck.engine.loading.filling.TensorTarget", NotedTarget)
    tensors = replaced(llama, "model.layers.2.mlp.down_proj.weight", digest=Digest("0" * 64))
    gc.collect()
    gc.disable()
    try:
        with suppress(IntegrityError):
            load(llama, tensors=tensors)
        assert len(held) > 10
        assert all(tensor() is None for tensor in held)
    finally:
        gc.enable()


@pytest.mark.parametrize("scheme", get_args(Scheme))
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("model.layers.1.mlp.down_proj.weight", math.nan, "is not a number"),
        ("model.layers.2.self_attn.q_proj.weight", -math.inf, "is inf"),
        ("model.embed_tokens.weight", 1e30, r"is 1e\+30"),
        ("model.layers.3.input_layernorm.weight", -1e30, r"is 1e\+30"),
    ],
)
def test_a_weight_that_no_trained_model_has_is_refused_by_its_name_in_every_scheme(
    llama: Reference, tmp_path: Path, scheme: Scheme, name: str, value: float, said: str
) -> None:
    tensors = load_file(llama.tensors[0].path)
    tensors[name].view(-1)[-3] = value
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(BrokenModelError, match=f"A weight in {name} {said}"):
        load(llama, tensors=stored_tensors(tmp_path), scheme=scheme)


def test_a_file_that_ends_too_early_is_found(damaged: Reference) -> None:
    last = max(damaged.tensors, key=lambda tensor: tensor.offset)
    with last.path.open("r+b") as file:
        file.truncate(last.offset + last.nbytes - 3)

    with pytest.raises(IntegrityError) as caught:
        load(damaged)
    assert caught.value.data["digest"] == last.digest


def test_a_file_that_is_gone_is_named(damaged: Reference) -> None:
    damaged.tensors[0].path.unlink()

    with pytest.raises(IntegrityError, match=damaged.tensors[0].path.name):
        load(damaged)


def test_a_missing_tensor_is_named(llama: Reference) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    rest = tuple(tensor for tensor in llama.tensors if tensor.name != name)

    with pytest.raises(BrokenModelError, match=name):
        load(llama, tensors=rest)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": (48, 71)}, "48, 71"),
        ({"shape": (72 * 48,)}, "3456"),
        ({"nbytes": 12}, "12 bytes"),
        ({"dtype": "U8"}, "U8"),
        ({"dtype": "F16"}, "bytes"),
    ],
    ids=["shape", "axes", "size", "kind", "kind and size"],
)
def test_a_tensor_that_the_config_does_not_describe_is_refused(
    llama: Reference, changes: dict[str, object], words: str
) -> None:
    name = "model.layers.0.mlp.gate_proj.weight"

    with pytest.raises(BrokenModelError, match=words):
        load(llama, tensors=replaced(llama, name, **changes))


@pytest.mark.parametrize("layers", [range(3, 5), range(-1, 2), range(3, 1), range(9, 9)], ids=str)
def test_layers_that_the_model_does_not_have_are_refused(llama: Reference, layers: range) -> None:
    with pytest.raises(InvalidLayersError, match="4 layers"):
        load(llama, layers=layers)


def test_a_model_for_which_there_is_no_memory_is_refused(llama: Reference) -> None:
    # More than a processor can address, so that no system promises it and then swaps.
    config = dataclasses.replace(llama.config, vocab_size=1 << 40, hidden_size=1 << 16)

    with pytest.raises(OutOfMemoryError, match="load these layers"):
        load_weights(
            config,
            range(0),
            embedding=True,
            head=False,
            tensors=[
                StoredTensor(
                    name="model.embed_tokens.weight",
                    dtype="F32",
                    shape=(config.vocab_size, config.hidden_size),
                    digest=llama.tensors[0].digest,
                    path=llama.tensors[0].path,
                    offset=0,
                    nbytes=config.vocab_size * config.hidden_size * 4,
                )
            ],
            scheme="f32",
            device=CPU,
        )


def test_random_weights_give_each_token_as_many_experts_as_a_real_model() -> None:
    config = config_of("deepseek 4")

    blocks = random_weights(
        config, [0], embedding=False, head=False, scheme="int4", device=CPU
    ).blocks

    mixture = blocks[0].mlp
    assert isinstance(mixture, MoE)
    table, routing = mixture.router.id_table, mixture.router.routing
    assert table is not None
    assert {len(set(row)) for row in table.tolist()} == {routing.per_token}


def test_random_weights_have_the_shape_of_the_model(llama: Reference) -> None:
    weights = random_weights(
        llama.config, range(4), embedding=True, head=True, scheme="f32", device=CPU
    )

    assert weights.nbytes == load(llama).nbytes
    for block in weights.blocks:
        assert isinstance(block.mixer_matrices[0], FloatLinear)
        assert block.mixer_matrices[0].weight.isfinite().all()


def test_a_stored_tensor_of_the_hub_has_the_digest_of_its_bytes(llama: Reference) -> None:
    tensor = llama.tensors[0]

    data = tensor.path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]

    assert hashlib.sha256(data).hexdigest() == tensor.digest
    assert (
        ModelConfig.from_dict(
            json.loads((tensor.path.parent / "config.json").read_text(encoding="utf-8"))
        )
        == llama.config
    )
