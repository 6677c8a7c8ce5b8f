"""gpt-oss as it is published, with experts of MXFP4, is what `transformers` makes of it."""

from pathlib import Path

import pytest
import torch
from mxfp4_models import in_plain_numbers, make_mxfp4
from safetensors.torch import load_file, save_file
from tiny_models import CPU, Pipeline, Reference, difference, loaded, off

from potluck.engine.kernels.products.scaled import from_e8m0
from potluck.engine.layers.blocks import LayerRun
from potluck.engine.layers.linear import PackedLinear
from potluck.engine.layers.mlp import MoE
from potluck.engine.loading.weights import random_weights
from potluck.errors import BrokenModelError
from potluck.model.config import ModelConfig
from potluck.model.formats import MXFP4
from potluck.model.layers import MoeSpec
from potluck.model.nearest import nearest_schemes
from potluck.model.schemes import PACKED_SCHEMES, Scheme
from potluck.model.tensor_formats import weight_bytes
from potluck.store.registry import open_model

SIZES = [20, *[1] * 12, 8]
TOKENS = sum(SIZES)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_mxfp4(tmp_path_factory.mktemp("mxfp4"))


def test_logits_are_those_of_transformers(reference: Reference) -> None:
    ids = reference.prompt(TOKENS)

    logits = Pipeline(reference, [1, 2]).run_in_pieces(ids, SIZES)

    assert difference(logits, reference.logits(ids)) < 1e-5


def test_a_folder_is_opened_with_each_expert_by_itself(
    reference: Reference, tmp_path: Path
) -> None:
    folder = reference.tensors[0].path.parent
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")

    model = open_model(folder, cache_dir=tmp_path)

    found = {(entry.name, entry.digest) for entry in model.manifest.tensors}
    assert found <= {(tensor.name, tensor.digest) for tensor in reference.tensors}
    assert "model.layers.3.mlp.experts.5.down_proj.blocks" in {name for name, _ in found}
    ids = reference.prompt(TOKENS)
    logits = Pipeline(loaded(model, reference)).run(ids)
    assert difference(logits, reference.logits(ids)) < 1e-5


@pytest.mark.parametrize("scheme", PACKED_SCHEMES)
def test_every_packed_scheme_holds_experts_as_they_are(
    reference: Reference, scheme: Scheme
) -> None:
    weights = reference.weights(range(2), scheme=scheme)

    assert not any(isinstance(run, LayerRun) for run in weights.runs)
    for block, theirs in zip(weights.blocks, reference.model.model.layers, strict=False):
        assert isinstance(block.mlp, MoE)
        for index, expert in enumerate(block.mlp.experts):
            for linear, values in (
                (expert.gate_up, theirs.mlp.experts.gate_up_proj[index].T),
                (expert.down, theirs.mlp.experts.down_proj[index].T),
            ):
                assert isinstance(linear, PackedLinear)
                assert linear.weight.format is MXFP4
                # What is below the least scale, 2^-126, becomes zero.
                error = (linear.weight.dequantise() - values).abs().max()
                assert error < 1e-37


def test_a_token_has_the_same_bits_wherever_it_is_computed(reference: Reference) -> None:
    ids = reference.prompt(TOKENS)

    whole = Pipeline(reference, [], "int8").run(ids)

    assert torch.equal(Pipeline(reference, [1, 3], "int8").run_in_pieces(ids, SIZES), whole)
    assert torch.equal(Pipeline(reference, [2], "int8").run_in_pieces(ids, [1] * TOKENS), whole)


def test_what_the_files_hold_is_what_is_planned_with(reference: Reference) -> None:
    config = reference.config
    tensors = config.stage_tensors(range(config.num_layers), embedding=True, head=True)

    assert nearest_schemes(config)[0] == "int8"
    assert reference.weights(embedding=True, head=True, scheme="int8").nbytes == weight_bytes(
        config, tensors, "int8"
    )
    feed_forward = config.layers[0].feed_forward
    assert isinstance(feed_forward, MoeSpec)
    expert = feed_forward.expert(0).down
    shape = (expert.rows[0], expert.width)
    name = f"model.layers.0.{expert.parts[0]}.weight"
    assert weight_bytes(config, {name: shape}, "int8") * 8 == 4.25 * shape[0] * shape[1]


def test_its_values_in_plain_numbers_compute_the_same(reference: Reference, tmp_path: Path) -> None:
    folder = in_plain_numbers(reference, tmp_path / "plain")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    plain = loaded(open_model(folder, cache_dir=tmp_path), reference)
    ids = reference.prompt(TOKENS)

    assert torch.equal(Pipeline(plain).run(ids), Pipeline(reference).run(ids))
    assert nearest_schemes(plain.config) == ()


def test_scales_are_powers_of_two_from_the_least_to_the_largest() -> None:
    scales = from_e8m0(torch.arange(255, dtype=torch.uint8))

    assert torch.equal(scales.double(), 2.0 ** (torch.arange(255).double() - 127))
    assert torch.equal(scales.double() / 2, (scales / 2).double())


def test_an_exponent_that_is_no_number_is_refused(tmp_path: Path) -> None:
    reference = make_mxfp4(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.experts.down_proj_scales"][2, 7, 0] = 255
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    model = loaded(open_model(tmp_path, cache_dir=tmp_path / "cache"), reference)

    for scheme in ("f32", "int8"):
        with pytest.raises(BrokenModelError, match="a scale that is no number"):
            model.weights(range(1), scheme=scheme)


def test_random_weights_have_the_format_of_the_published_ones(reference: Reference) -> None:
    config: ModelConfig = reference.config

    weights = random_weights(
        config, range(1), embedding=False, head=False, scheme="int8", device=CPU
    )

    mixture = weights.blocks[0].mlp
    assert isinstance(mixture, MoE)
    for one in mixture.experts:
        assert isinstance(one.down, PackedLinear)
        assert one.down.weight.format is MXFP4


def test_8_bits_beside_the_experts_cost_little(reference: Reference) -> None:
    ids = reference.prompt(TOKENS)

    logits = Pipeline(reference, [], "int8").run(ids)

    assert off(logits, reference.logits(ids)) < 0.15
