"""Angles are those of `transformers`, for every kind of scaling, wherever a table was grown."""

import hashlib
import math
import struct
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from potluck.engine.layers.rotary import Rotary, rotary_frequencies, rotate
from potluck.model.config import ModelConfig
from potluck.model.mixing.rope import LinearScaling, Rope

CPU = torch.device("cpu")
DIM, MAX_POSITION = 32, 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 4 * DIM,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITION,
}
FACTORS = [1.0 + pair / 4 for pair in range(DIM // 2)]
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": FACTORS,
    "long_factor": FACTORS[::-1],
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama 3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn, by lengths": {**YARN, "factor": None},
    "yarn, not rounded": {**YARN, "truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn, given": {**YARN, "attention_factor": 0.7},
    "yarn, two scales": {**YARN, "mscale": 0.8, "mscale_all_dim": 1.3},
    "longrope": LONGROPE,
    "longrope, given": {**LONGROPE, "factor": 16.0},
}


@pytest.mark.parametrize("context", [40, 64, 65, 256, 700])
@pytest.mark.parametrize("theta", [100.0, 1e6])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_transformers(name: str, theta: float, context: int) -> None:
    parameters = SCALINGS[name] | {"rope_theta": theta}
    config = CONFIG | {"rope_parameters": parameters}
    reference = LlamaConfig(**CONFIG, rope_parameters=dict(parameters))
    compute = ROPE_INIT_FUNCTIONS[SCALINGS[name]["rope_type"]]
    expected, expected_factor = compute(reference, CPU, seq_len=context)

    rope = ModelConfig.from_dict(config).ropes[0]
    frequencies, factor = rotary_frequencies(rope, context)

    torch.testing.assert_close(frequencies, expected, rtol=2e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_frequencies_have_these_bits_on_every_computer() -> None:
    digest = hashlib.sha256()
    for parameters in SCALINGS.values():
        rope = ModelConfig.from_dict(CONFIG | {"rope_parameters": parameters}).ropes[0]
        frequencies, factor = rotary_frequencies(rope, 700)
        digest.update(frequencies.numpy().astype("<f4").tobytes() + struct.pack("<d", factor))

    assert digest.hexdigest()[:16] == "6cb5b8debcb9b9ba"


def test_longrope_may_have_a_factor_of_its_own_for_long_texts() -> None:
    """As the code that Phi-3.5-MoE was published with; `transformers` keeps the frequencies of short texts there."""
    config = CONFIG | {"rope_parameters": LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.3}}
    rope = ModelConfig.from_dict(config).ropes[0]

    (short, of_short), (long, of_long) = (rotary_frequencies(rope, at) for at in (64, 65))

    assert (of_short, of_long) == (1.1, 1.3)
    torch.testing.assert_close(short / long, torch.tensor(FACTORS[::-1]) / torch.tensor(FACTORS))


def test_a_context_within_the_original_one_is_not_scaled_dynamically() -> None:
    config = CONFIG | {"rope_parameters": SCALINGS["dynamic"]}
    rope = ModelConfig.from_dict(config).ropes[0]

    within, _ = rotary_frequencies(rope, MAX_POSITION)
    beyond, _ = rotary_frequencies(rope, MAX_POSITION + 1)

    assert torch.equal(within, rotary_frequencies(Rope(dim=DIM), MAX_POSITION)[0])
    assert (beyond[1:] < within[1:]).all()


def test_rotation_turns_pairs_and_keeps_their_length() -> None:
    rotary = Rotary(Rope(dim=8), context=1000, dtype=torch.float32, device=CPU)
    x = torch.randn(5, 3, 8)
    turned = x.clone()

    angles = rotary.angles(position=700, tokens=5)
    rotate(turned, angles.cosines, angles.sines)

    pairs, turned_pairs = x.view(5, 3, 2, 4), turned.view(5, 3, 2, 4)
    torch.testing.assert_close(turned_pairs.norm(dim=2), pairs.norm(dim=2))
    first = torch.atan2(turned_pairs[0, 0, 1, 0], turned_pairs[0, 0, 0, 0])
    before = torch.atan2(pairs[0, 0, 1, 0], pairs[0, 0, 0, 0])
    # The first pair turns by one radian a position.
    assert torch.cos(first - before).item() == pytest.approx(math.cos(700.0), abs=1e-4)


def test_angles_are_the_same_wherever_a_table_was_grown() -> None:
    def angles(*positions: int) -> Tensor:
        rotary = Rotary(Rope(dim=8), context=2000, dtype=torch.float32, device=CPU)
        for position in positions:
            rotary.angles(position, 1)
        return rotary.angles(1500, 3)[0]

    assert torch.equal(angles(), angles(0, 511, 512, 1600))


def test_linear_scaling_slows_every_pair() -> None:
    plain, _ = rotary_frequencies(Rope(dim=8), 100)
    scaled, _ = rotary_frequencies(Rope(dim=8, scaling=LinearScaling(factor=4.0)), 100)

    torch.testing.assert_close(scaled * 4, plain)
