"""gpt-oss in GGUF: gates and ups apart, sinks, biases of stacked experts, and MXFP4 as it lies in the file."""

from pathlib import Path

import pytest
import torch
from gguf_writer import write_gguf
from mxfp4_models import in_plain_numbers, make_mxfp4
from tiny_models import Pipeline, Reference, difference, loaded, off

from potluck.engine.layers.linear import PackedLinear
from potluck.engine.layers.mlp import MoE
from potluck.model.formats import INT8, MXFP4
from potluck.model.nearest import explain_more_bits, nearest_schemes
from potluck.store.registry import open_model

TOKENS = 24
EXPERTS = {
    f"blk.{layer}.ffn_{part}_exps.weight": "MXFP4"
    for layer in range(4)
    for part in ("gate", "up", "down")
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """With the limit of gates that llama.cpp has, since its files say none."""
    return make_mxfp4(tmp_path_factory.mktemp("model"), swiglu_limit=7.0)


@pytest.fixture(scope="module")
def plain(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_plain_numbers(reference, tmp_path_factory.mktemp("more") / "plain")


@pytest.mark.parametrize("kinds", [{}, EXPERTS], ids=["plain numbers", "mxfp4"])
def test_logits_are_those_of_transformers(
    reference: Reference, plain: Path, tmp_path: Path, kinds: dict[str, str]
) -> None:
    file = write_gguf(plain, tmp_path / "model.gguf", kinds=kinds)

    model = loaded(open_model(file, cache_dir=tmp_path / "cache"), reference)

    ids = reference.prompt(TOKENS)
    logits = Pipeline(model, [1, 3]).run_in_pieces(ids, [9, 1, 1, 13])
    assert difference(logits, reference.logits(ids)) < 1e-5


def test_experts_are_held_in_4_bits_as_they_are(
    reference: Reference, plain: Path, tmp_path: Path
) -> None:
    file = write_gguf(plain, tmp_path / "model.gguf", kind="Q8_0", kinds=EXPERTS)
    model = loaded(open_model(file, cache_dir=tmp_path / "cache"), reference)
    assert nearest_schemes(model.config)[0] == "int8"
    assert explain_more_bits(model.config) == ""

    weights = model.weights(range(1, 2), scheme="int8")

    mixture, theirs = weights.blocks[0].mlp, reference.model.model.layers[1].mlp.experts
    assert isinstance(mixture, MoE)
    for index, expert in enumerate(mixture.experts):
        assert isinstance(expert.gate_up, PackedLinear)
        assert isinstance(expert.down, PackedLinear)
        assert expert.gate_up.weight.format is expert.down.weight.format is MXFP4
        gates_and_ups = theirs.gate_up_proj[index].T
        split = torch.cat((gates_and_ups[::2], gates_and_ups[1::2]))
        for linear, values in ((expert.gate_up, split), (expert.down, theirs.down_proj[index].T)):
            # What is below the least scale, 2^-126, becomes zero.
            assert (linear.weight.dequantise() - values).abs().max() < 1e-37
    attention = weights.blocks[0].mixer_matrices[-1]
    assert isinstance(attention, PackedLinear)
    assert attention.weight.format is INT8


def test_some_experts_of_another_type_are_held_by_the_scheme(
    reference: Reference, plain: Path, tmp_path: Path
) -> None:
    kinds = {**EXPERTS, "blk.2.ffn_up_exps.weight": "Q8_0"}
    file = write_gguf(plain, tmp_path / "model.gguf", kind="Q8_0", kinds=kinds)

    model = loaded(open_model(file, cache_dir=tmp_path / "cache"), reference)

    ids = reference.prompt(TOKENS)
    in_8_bits = Pipeline(model, [], "int8").run(ids)
    assert off(in_8_bits, Pipeline(model).run(ids)) < 0.15
    mixture = model.weights(range(1), scheme="int8").blocks[0].mlp
    assert isinstance(mixture, MoE)
    assert mixture.experts[0].down.memory[0].numel() == INT8.nbytes(64, 96)
