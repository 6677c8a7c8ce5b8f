"""A config is either whole and consistent or refused with the name of the field."""

import json

import pytest
from config_layers import attention, layer_ropes, row_bytes, windows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potluck.errors import InvalidConfigError, ModelError, UnknownArchitectureError
from potluck.model.config import ModelConfig
from potluck.model.families.table import FAMILIES
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.mixing.rope import LinearScaling, Llama3Scaling, Rope
from potluck.model.tensor_formats import weight_bytes

LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "eos_token_id": [128001, 128008, 128009],
}


def llama(**changes: object) -> dict[str, object]:
    return LLAMA | changes


def without(*names: str) -> dict[str, object]:
    return {name: value for name, value in LLAMA.items() if name not in names}


def test_llama_3_2_is_read_as_published() -> None:
    config = ModelConfig.from_dict(LLAMA)

    mixer = attention(config.layers[0].mixer)
    assert (mixer.q_size, mixer.kv_size, config.head_dim) == (
        2048,
        512,
        64,
    )
    assert config.ropes[0] == Rope(
        dim=64,
        theta=500000.0,
        scaling=Llama3Scaling(
            factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
        ),
    )
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert row_bytes(config, 2) == 2 * 8 * 64 * 2
    assert windows(config) == (None,) * 16


def test_the_tensors_of_llama_3_2_1b_have_its_known_number_of_parameters() -> None:
    config = ModelConfig.from_dict(LLAMA)

    tensors = config.stage_tensors(range(16), embedding=True, head=True)

    parameters = 0
    for shape in tensors.values():
        size = 1
        for axis in shape:
            size *= axis
        parameters += size
    assert parameters == 1_235_814_400
    assert "lm_head.weight" not in tensors


def test_a_stage_without_embedding_and_head_has_its_layers_alone() -> None:
    config = ModelConfig.from_dict(llama(tie_word_embeddings=False))

    tensors = config.stage_tensors(range(3, 5), embedding=False, head=False)

    assert tensors == config.layer_tensors(3) | config.layer_tensors(4)
    assert all(name.startswith(("model.layers.3.", "model.layers.4.")) for name in tensors)


def test_an_untied_head_has_a_matrix_of_its_own() -> None:
    config = ModelConfig.from_dict(llama(tie_word_embeddings=False))

    assert set(config.head_tensors()) == {"model.norm.weight", "lm_head.weight"}
    assert set(ModelConfig.from_dict(LLAMA).head_tensors()) == {
        "model.norm.weight",
        "model.embed_tokens.weight",
    }


def test_the_rotary_fields_of_transformers_5_mean_the_same() -> None:
    scaling = LLAMA["rope_scaling"]
    assert isinstance(scaling, dict)
    new = without("rope_theta", "rope_scaling") | {
        "rope_parameters": scaling | {"rope_theta": 500000.0}
    }

    assert ModelConfig.from_dict(new) == ModelConfig.from_dict(LLAMA)


def test_linear_scaling_is_read_under_its_old_name() -> None:
    config = ModelConfig.from_dict(llama(rope_scaling={"type": "linear", "factor": 2}))

    assert config.ropes[0].scaling == LinearScaling(factor=2.0)


def test_missing_fields_take_what_transformers_takes() -> None:
    config = ModelConfig.from_dict(
        without("num_key_value_heads", "head_dim", "rope_scaling", "rope_theta", "rms_norm_eps")
    )

    mixer = attention(config.layers[0].mixer)
    assert (mixer.kv_heads, config.head_dim, config.rms_norm_eps) == (32, 64, 1e-6)
    assert config.ropes == (Rope(dim=64, theta=10000.0),)


def test_biases_and_norms_follow_the_family() -> None:
    def facts(architecture: str, **changes: object) -> tuple[bool, bool, bool, bool]:
        config = ModelConfig.from_dict(llama(architectures=[architecture], **changes))
        layer = config.layers[0]
        qkv, output, mlp, _ = (part.has_bias for part in layer.projections)
        return qkv, output, mlp, attention(layer.mixer).qk_norm == "head"

    assert facts("LlamaForCausalLM") == (False, False, False, False)
    assert facts("LlamaForCausalLM", attention_bias=True) == (True, True, False, False)
    assert facts("LlamaForCausalLM", mlp_bias=True) == (False, False, True, False)
    assert facts("MistralForCausalLM", attention_bias=True) == (False, False, False, False)
    assert facts("Qwen2ForCausalLM") == (True, False, False, False)
    assert facts("Qwen3ForCausalLM") == (False, False, False, True)


def test_windows_follow_the_family_and_its_switch() -> None:
    def read(architecture: str, **changes: object) -> tuple[int | None, ...]:
        config = llama(architectures=[architecture], num_hidden_layers=4, **changes)
        return windows(ModelConfig.from_dict(config))

    assert read("LlamaForCausalLM", sliding_window=9) == (None,) * 4
    assert read("MistralForCausalLM", sliding_window=9) == (9,) * 4
    assert read("MistralForCausalLM", sliding_window=None) == (None,) * 4
    assert read("MistralForCausalLM") == (4096,) * 4
    assert read("Qwen2ForCausalLM", sliding_window=9) == (None,) * 4
    switched = {"sliding_window": 9, "use_sliding_window": True}
    assert read("Qwen2ForCausalLM", **switched, max_window_layers=3) == (None, None, None, 9)
    types = ["sliding_attention", "full_attention"] * 2
    assert read("Qwen3ForCausalLM", **switched, layer_types=types) == (9, None, 9, None)


def test_an_unknown_architecture_is_named_beside_those_that_are_known() -> None:
    with pytest.raises(UnknownArchitectureError, match="MambaForCausalLM") as caught:
        ModelConfig.from_dict(llama(architectures=["MambaForCausalLM"]))

    assert all(name in str(caught.value) for name in FAMILIES)


@pytest.mark.parametrize(
    "name", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
)
def test_a_missing_size_is_named(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"lacks {name}"):
        ModelConfig.from_dict(without(name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", None),
        ("architectures", [7]),
        ("architectures", {}),
        ("num_key_value_heads", 5),
        ("num_key_value_heads", 0),
        ("num_attention_heads", -1),
        ("hidden_size", 10**30),
        ("hidden_size", True),
        ("vocab_size", "many"),
        ("vocab_size", 2048.0),
        ("intermediate_size", []),
        ("num_hidden_layers", 1 << 20),
        ("head_dim", 63),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", True),
        ("rope_theta", float("inf")),
        ("rope_theta", 10**400),
        ("rope_scaling", "llama3"),
        ("rope_scaling", {"rope_type": "spiral", "factor": 4.0}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_scaling", {"rope_type": "linear", "factor": -1}),
        (
            "rope_scaling",
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 3},
        ),
        ("hidden_act", "gelu"),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
        ("eos_token_id", -1),
        ("eos_token_id", [1, "2"]),
        ("eos_token_id", list(range(1000))),
        ("quantization_config", {"quant_method": "gptq"}),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(name: str, value: object) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        ModelConfig.from_dict(llama(**{name: value}))


def test_a_hidden_size_that_heads_do_not_divide_needs_a_head_dim() -> None:
    odd = llama(hidden_size=2050)

    assert attention(ModelConfig.from_dict(odd).layers[0].mixer).q_size == 2048
    del odd["head_dim"]
    with pytest.raises(InvalidConfigError, match="hidden_size"):
        ModelConfig.from_dict(odd)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
# How fast a busy machine draws examples is not what is tested.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

KNOWN_FIELDS = [
    *LLAMA,
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "rope_parameters",
    "attention_bias",
    "sliding_window_pattern",
    "no_rope_layers",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "mlp_only_layers",
    "decoder_sparse_step",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "embedding_multiplier",
    "text_config",
]
ROPE_FIELDS = [
    "rope_type",
    "type",
    "factor",
    "original_max_position_embeddings",
    "short_factor",
    "long_factor",
    "mscale",
    "mscale_all_dim",
    "beta_fast",
    "full_attention",
]
SCALING_NAMES = ["linear", "llama3", "dynamic", "yarn", "longrope", "su"]


@pytest.mark.slow
@unhurried
@given(
    architecture=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(st.sampled_from(KNOWN_FIELDS), json_values, max_size=5),
    scaling=st.none()
    | st.dictionaries(
        st.sampled_from(ROPE_FIELDS), json_values | st.sampled_from(SCALING_NAMES), max_size=5
    ),
)
def test_no_config_of_a_stranger_breaks_more_than_itself(
    architecture: str, changes: dict[str, object], scaling: dict[str, object] | None
) -> None:
    config = llama(architectures=[architecture], text_config=llama()) | changes
    if scaling is not None:
        config["rope_scaling"] = scaling
    try:
        config = ModelConfig.from_dict(config)
    except ModelError as error:
        json.dumps(error.data).encode()  # what is shown can also be sent
        error.message.encode()
    else:
        assert len(config.layers) == len(config.layer_kinds) == config.num_layers
        assert all(rope is None or rope < len(config.ropes) for rope in layer_ropes(config))
        mixer = config.layers[0].mixer
        assert not isinstance(mixer, AttentionSpec) or mixer.heads % mixer.kv_heads == 0
        sizes = [
            one.mixer.head_dim for one in config.layers if isinstance(one.mixer, AttentionSpec)
        ]
        largest = max([config.head_dim, *sizes])
        # A rope that turns nothing may have nothing to turn.
        assert all(0 <= rope.dim <= largest for rope in config.ropes)
        assert weight_bytes(config, config.layer_tensors(0), "int4") > 0


@unhurried
@given(json_values)
def test_what_is_no_config_at_all_is_refused(value: object) -> None:
    with pytest.raises(ModelError):
        ModelConfig.from_dict(value)  # pyright: ignore[reportArgumentType]
