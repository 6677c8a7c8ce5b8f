"""Each layer has its specification; layers of one model that differ in cost are told apart."""

from math import prod

import pytest
from config_layers import windows

from potluck.errors import InvalidConfigError
from potluck.model.config import ModelConfig
from potluck.model.families.facts import SANDWICH_NORMS
from potluck.model.layers import DenseSpec, LayerSpec, MoeSpec
from potluck.model.mixing.mixers import AttentionSpec

SIZES: dict[str, object] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def read(architecture: str, **changes: object) -> ModelConfig:
    return ModelConfig.from_dict(SIZES | {"architectures": [architecture]} | changes)


def attention_of(layer: LayerSpec) -> AttentionSpec:
    assert isinstance(layer.mixer, AttentionSpec)
    return layer.mixer


def test_windows_repeat_by_their_pattern() -> None:
    assert windows(read("Gemma2ForCausalLM")) == (4096, None, 4096, None)
    gemma = read("Gemma3ForCausalLM", sliding_window=9, num_hidden_layers=8)
    assert windows(gemma) == (9, 9, 9, 9, 9, None, 9, 9)
    exaone = read("Exaone4ForCausalLM", sliding_window=9, sliding_window_pattern="LG")
    assert windows(exaone) == (9, None, 9, None)
    # The last layer sees all, whatever the letters say.
    exaone = read("Exaone4ForCausalLM", sliding_window=9, sliding_window_pattern="LLL")
    assert windows(exaone) == (9, 9, 9, None)


def test_layer_types_say_more_than_a_pattern() -> None:
    types = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    for name in ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Exaone4ForCausalLM"):
        assert windows(read(name, layer_types=types)) == (None, 4096, None, None)
    # These have one kind of layer, and transformers does not look.
    assert windows(read("MixtralForCausalLM", layer_types=types)) == (None,) * 4


def test_smollm_3_gives_windows_to_layers_without_rotary() -> None:
    switched = {"use_sliding_window": True, "sliding_window": 9}

    assert windows(read("SmolLM3ForCausalLM", **switched)) == (None, None, None, 9)
    assert windows(read("SmolLM3ForCausalLM", sliding_window=9)) == (None,) * 4


def test_some_layers_of_qwen_3_moe_have_no_experts() -> None:
    def have_experts(**fields: object) -> list[bool]:
        return [kind.has_experts for kind in read("Qwen3MoeForCausalLM", **fields).layer_kinds]

    assert have_experts() == [True] * 4
    every_second = have_experts(decoder_sparse_step=2, mlp_only_layers=[1])
    assert every_second == [False, False, False, True]


def test_a_specification_says_what_a_layer_is_made_of() -> None:
    layers = read("Gemma3ForCausalLM", num_hidden_layers=6, sliding_window=9).layers
    near, full = attention_of(layers[0]), attention_of(layers[-1])
    assert (near.window, near.rope) == (9, 1)
    assert (full.window, full.rope, full.qk_norm) == (None, 0, "head")
    assert (layers[-1].norms, layers[-1].norm_eps) == (SANDWICH_NORMS, 1e-6)
    dense, moe, *_ = read("Qwen3MoeForCausalLM", mlp_only_layers=[0], num_experts=8).layers
    assert isinstance(dense.feed_forward, DenseSpec)
    assert isinstance(moe.feed_forward, MoeSpec)
    assert moe.feed_forward.router.parts == ("mlp.gate",)
    assert moe.feed_forward.expert(7).down.parts == ("mlp.experts.7.down_proj",)
    assert read("GraniteForCausalLM", residual_multiplier=0.2).layers[3].residual_multiplier == 0.2


def test_a_projection_is_made_of_the_matrices_that_files_have() -> None:
    apart, fused = (
        attention_of(read(f"{name}ForCausalLM").layers[0]) for name in ("Qwen2", "Phi3")
    )

    assert fused.qkv.parts == ("self_attn.qkv_proj",)
    assert apart.qkv.parts == tuple(f"self_attn.{one}_proj" for one in "qkv")
    assert sum(apart.qkv.rows) == sum(fused.qkv.rows)
    assert [part.has_bias for part in apart.qkv.split()] == [True] * 3
    assert [dict(part.tensors()) for part in apart.qkv.split()] == [
        {f"{name}.weight": (rows, 64), f"{name}.bias": (rows,)}
        for name, rows in zip(apart.qkv.parts, apart.qkv.rows, strict=True)
    ]


def test_layers_of_equal_cost_are_of_one_kind() -> None:
    assert len(set(read("LlamaForCausalLM").layer_kinds)) == 1
    assert len(set(read("SmolLM3ForCausalLM").layer_kinds)) == 1  # rotary costs next to nothing
    gemma = read("Gemma2ForCausalLM").layer_kinds
    assert [attention_of(kind.spec).window for kind in gemma] == [4096, None, 4096, None]
    assert len(set(gemma)) == 2
    mixed = read("Qwen3MoeForCausalLM", mlp_only_layers=[0])
    assert [kind.has_experts for kind in mixed.layer_kinds] == [False, True, True, True]


def test_a_layer_has_the_numbers_of_its_tensors() -> None:
    config = read(
        "Qwen3MoeForCausalLM",
        num_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        mlp_only_layers=[0],
    )
    attention = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 + 2 * 16
    sizes = [sum(map(prod, config.layer_tensors(layer).values())) for layer in (0, 1)]

    assert sizes == [attention + 3 * 64 * 32, attention + 3 * 64 + 3 * 3 * 64 * 8]


def test_experts_are_counted_under_both_of_their_names() -> None:
    for name in ("num_experts", "num_local_experts"):
        experts = read("Qwen3MoeForCausalLM", **{name: 9}).experts
        assert experts is not None
        assert (experts.routing.count, experts.routing.per_token, experts.routing.normalise) == (
            9,
            8,
            False,
        )


@pytest.mark.parametrize(("layers", "experts"), [(61, 256), (60, 384), (48, 512), (128, 256)])
def test_as_many_experts_as_the_largest_models_have_are_read(layers: int, experts: int) -> None:
    config = read("Qwen3MoeForCausalLM", num_hidden_layers=layers, num_experts=experts)

    assert [kind.has_experts for kind in config.layer_kinds] == [True] * layers


def test_layers_times_experts_are_bounded() -> None:
    many = {"num_hidden_layers": 1024, "num_experts": 1024}

    with pytest.raises(InvalidConfigError, match=r"at most 42 layers with experts.* has 1024"):
        read("Qwen3MoeForCausalLM", **many)
    # Layers without them do not count.
    config = read("Qwen3MoeForCausalLM", **many, decoder_sparse_step=25)
    assert sum(kind.has_experts for kind in config.layer_kinds) == 40


def test_no_experts_are_one_mlp_only_where_a_family_says_so() -> None:
    granite = read("GraniteMoeHybridForCausalLM", num_local_experts=0, layer_types=["mamba"] * 4)

    assert {type(layer.feed_forward) for layer in granite.layers} == {DenseSpec}
    # Elsewhere the family's own field counts.
    assert read("Qwen3MoeForCausalLM", num_local_experts=0, num_experts=8).experts is not None


MIMO_HEADS: dict[str, object] = {
    "partial_rotary_factor": 0.5,
    "head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads_per_layer": [2, 2, 2, 3],
}


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("MixtralForCausalLM", {"num_local_experts": 10**6}, "num_local_experts"),
        ("MixtralForCausalLM", {"num_local_experts": 0}, "num_local_experts"),
        ("GraniteMoeForCausalLM", {"num_local_experts": 0}, "num_local_experts"),
        ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": 1}, "norm_topk_prob"),
        ("GraniteForCausalLM", {"logits_scaling": 1e-320}, "logits_scaling.*above 1e-06"),
        ("FalconH1ForCausalLM", {"lm_head_multiplier": 1e-320}, "lm_head_multiplier.*above 1e-06"),
        ("FalconH1ForCausalLM", {"mlp_multipliers": [1, 1e-320]}, "mlp_multipliers.*above 1e-06"),
        ("MiMoV2FlashForCausalLM", MIMO_HEADS, "num_key_value_heads_per_layer = '4 heads with 3"),
        ("Exaone4ForCausalLM", {"sliding_window_pattern": "LXG"}, "letters L and G"),
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention"]}, "each of 4 layers"),
        ("Gemma2ForCausalLM", {"layer_types": ["chunked_attention"] * 4}, "chunked"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(
    architecture: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        read(architecture, **changes)
