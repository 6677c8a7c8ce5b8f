"""What a config says of quantised weights is read, or refused with its name."""

from dataclasses import replace

import gguf
import pytest

from potluck.errors import InvalidConfigError
from potluck.model.fields import Fields
from potluck.model.quantization_config import read_quantization
from potluck.model.quantized import (
    GGUF_BLOCKS,
    Quantization,
    gguf_bytes,
    stored_parts,
    way_of,
    weight_name,
)

# As they stand in the config.json of models of the Hub.
GPTQ = {
    "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "quant_method": "gptq",
    "damp_percent": 0.01, "model_file_base_name": "model", "static_groups": False,
    "true_sequential": True,
}  # fmt: skip
GPTQ_V2 = GPTQ | {"checkpoint_format": "gptq_v2", "sym": False, "desc_act": True, "group_size": -1}
AWQ = {
    "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq",
    "version": "gemm", "zero_point": True,
}  # fmt: skip
QWEN_FP8 = {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"],
}  # fmt: skip
AUTO_FP8 = {"activation_scheme": "static", "quant_method": "fp8", "ignored_layers": ["lm_head"]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
AUTO_ROUND = {
    "bits": 4, "data_type": "int", "group_size": 128, "sym": True, "iters": 0,
    "autoround_version": "0.12.3", "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
}  # fmt: skip
GGUF = {"quant_method": "gguf", "bits": 4, "sym": False}
FBGEMM = {"activation_scale_ub": 1200.0, "quant_method": "fbgemm_fp8"}


def compressed(form: str, **weights: object) -> dict[str, object]:
    usual = {"actorder": None, "block_structure": None, "dynamic": False, "symmetric": True}
    group = {"input_activations": None, "targets": ["Linear"], "weights": usual | weights}
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "ignore": ["lm_head"],
        "quant_method": "compressed-tensors",
    }


W4A16 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=128)
FLOAT = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
FLOAT_BLOCKS = compressed(
    "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128]
)
# As llm-compressor writes what was applied to the weights alone, and nothing.
MERGED = W4A16 | {
    "transform_config": {
        "config_groups": {
            "R1": {
                "apply": [
                    {"ignore": [], "location": "weight_output", "targets": ["re:.*o_proj$"]},
                    {"inverse": True, "location": "weight_input", "targets": ["re:.*q_proj$"]},
                ],
                "type": "hadamard",
            }
        }
    }
}
W8A8 = compressed("int-quantized", num_bits=8, type="int", strategy="channel")


MLX = {"group_size": 64, "bits": 4}
MLX_4 = Quantization(method="mlx", bits=4, group_size=64, is_symmetric=False, has_coarse_head=True)
FP4 = Quantization(method="fp4", bits=4, group_size=16, is_symmetric=False, is_affine=False)


def read(given: object) -> Quantization | None:
    return read_quantization(Fields({"quantization_config": given}))


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        (GPTQ, Quantization(method="gptq", bits=4, group_size=128, zero_offset=1)),
        (
            GPTQ_V2,
            Quantization(
                method="gptq", bits=4, is_symmetric=False, is_reordered=True, group_size=None
            ),
        ),
        (AWQ, Quantization(method="awq", bits=4, is_symmetric=False, group_size=128)),
        (QWEN_FP8, Quantization(method="fp8", block=(128, 128))),
        (AUTO_FP8, Quantization(method="fp8")),
        (FBGEMM, Quantization(method="fp8")),
        (MODELOPT, Quantization(method="fp8")),
        (AUTO_ROUND, Quantization(method="gptq", bits=4, group_size=128, zero_offset=1)),
        (
            AUTO_ROUND | {"packing_format": "auto_round:auto_awq"},
            Quantization(method="awq", bits=4, group_size=128),
        ),
        (W4A16, Quantization(method="packed", bits=4, group_size=128)),
        (MERGED, Quantization(method="packed", bits=4, group_size=128)),
        (
            W4A16 | {"transform_config": {}, "sparsity_config": {}},
            Quantization(method="packed", bits=4, group_size=128),
        ),
        (
            W4A16 | {"transform_config": {"config_groups": {}}},
            Quantization(method="packed", bits=4, group_size=128),
        ),
        (FLOAT, Quantization(method="fp8")),
        (FLOAT_BLOCKS, Quantization(method="fp8", block=(128, 128))),
        (W8A8, Quantization(method="integers")),
        (
            compressed(
                "int-quantized", num_bits=4, symmetric=False, strategy="group", group_size=64
            ),
            Quantization(method="integers", bits=4, is_symmetric=False, group_size=64),
        ),
        (GPTQ | {"bits": 3}, Quantization(method="gptq", bits=3, group_size=128, zero_offset=1)),
        (MODELOPT | {"quant_algo": "NVFP4"}, FP4),
        (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), FP4),
        (
            compressed("mxfp4-pack-quantized", num_bits=4, type="float"),
            replace(FP4, group_size=32),
        ),
        (
            compressed("mxfp8-quantized", num_bits=8, type="float"),
            Quantization(method="fp8", block=(1, 32)),
        ),
        ({"quant_method": "mxfp8"}, Quantization(method="fp8", block=(1, 32))),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            Quantization(
                method="bitsandbytes", bits=4, group_size=64, is_symmetric=False, is_affine=False
            ),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            Quantization(method="integers"),
        ),
        (MLX, MLX_4),
        (
            MLX | {"bits": 8, "group_size": 32, "mode": "affine"},
            replace(MLX_4, bits=8, group_size=32, has_coarse_head=False),
        ),
        (
            MLX | {"mode": "mxfp4", "group_size": 32},
            replace(MLX_4, group_size=32, is_affine=False),
        ),
    ],
)
def test_what_the_hub_has_is_read(given: object, read_as: Quantization) -> None:
    assert read(given) == read_as


def test_a_model_may_have_its_matrices_in_several_ways() -> None:
    groups = {
        "a": {"weights": {"num_bits": 8, "type": "float"}, "format": "float-quantized"},
        "b": {"weights": {"num_bits": 4, "type": "float"}, "format": "nvfp4-pack-quantized"},
    }
    mixed = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": groups,
    }
    layers = {"x": {"quant_algo": "FP8"}, "y": {"quant_algo": "NVFP4"}, "z": {"quant_algo": "FP8"}}
    modelopt = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
    }
    fp8 = Quantization(method="fp8")

    for given in (mixed, modelopt):
        found = read(given)
        assert found is not None
        assert set(found.ways) == {replace(FP4, others=(fp8,)), fp8}

    matrix = (32, 64)
    for stored, way in (
        ({".weight": ("F8_E4M3", matrix), ".weight_scale": ("F32", (1,))}, fp8),
        ({".weight_packed": ("U8", (32, 32)), ".weight_scale": ("F8_E4M3", (32, 4))}, found),
        ({".weight": ("U8", (32, 32)), ".weight_scale": ("F8_E4M3", (32, 4))}, found),
        ({".weight": ("BF16", matrix)}, None),
    ):
        assert way_of(found, matrix, stored.get) == way


def test_exceptions_of_gptq_differ_in_bits() -> None:
    dynamic = {"+:.*down.*": {"bits": 8, "group_size": 32}, "-:.*gate.*": {}, "x": {"bits": 16}}

    found = read(GPTQ | {"dynamic": dynamic})

    assert found is not None
    eight = replace(found, others=(), bits=8, group_size=32)
    assert found.others == (eight,)
    parts = {
        ".qweight": ("I32", (16, 96)),
        ".qzeros": ("I32", (2, 24)),
        ".scales": ("F16", (2, 96)),
    }
    assert way_of(found, (96, 64), parts.get) == eight


def test_mlx_names_the_matrices_that_have_more_bits() -> None:
    six = {"group_size": 64, "bits": 6}
    exceptions = {
        "model.layers.1.self_attn.v_proj": six,
        "model.layers.1.mlp.switch_mlp.down_proj": six,
        "model.layers.2.mlp.gate": {"group_size": 64, "bits": 8},
        "lm_head": six,
        "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 3},
        "model.layers.3.mlp.up_proj": False,
    }

    found = read(MLX | exceptions)

    assert found is not None
    assert found.fits_offsets
    assert not found.has_coarse_head
    assert [found.higher_precision_roles(i) for i in (0, 1, 2)] == [set(), {"qkv", "down"}, set()]
    assert read_quantization(Fields({"quantization": MLX | exceptions})) == found


def test_a_config_without_it_is_of_plain_numbers() -> None:
    assert read(None) is None
    assert read_quantization(Fields({})) is None


@pytest.mark.parametrize("location", ["input", "output", "k_cache", "q_attn", "new"])
@pytest.mark.parametrize("usual", [W4A16, FLOAT])
def test_weights_for_rotated_activations_are_refused(
    usual: dict[str, object], location: str
) -> None:
    steps = [{"location": "weight_input", "inverse": True}, {"location": location}]
    transform = {"config_groups": {"v": {"type": "hadamard", "apply": steps}}}

    with pytest.raises(InvalidConfigError, match=r"rotated.*config_groups\.v\.apply\.1\.location"):
        read(usual | {"transform_config": transform})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (W4A16 | {"transform_config": {"transform_groups": {}}}, "transform_config.config_groups"),
        (
            W4A16 | {"transform_config": {"config_groups": {"v": {"apply": ["input"]}}}},
            "named fields",
        ),
        ({"quant_method": "bitsandbytes"}, "neither 4 nor 8 bits"),
        ({"quant_method": "mxfp6"}, "mxfp6.*It reads GPTQ"),
        ({"bits": 4}, "something that config.json does not name"),
        (MLX | {"bits": 7}, "MLX with 7 bits"),
        (MLX | {"mode": "ternary"}, "MLX in the mode ternary"),
        (GPTQ | {"bits": 5}, "GPTQ with 5 bits"),
        (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ in the format marlin"),
        (GPTQ | {"is_marlin_format": True}, "GPTQ in the format marlin"),
        (GPTQ | {"group_size": 0}, "group_size = 0"),
        (GPTQ | {"group_size": -2}, "group_size = -2"),
        (AWQ | {"version": "gemv"}, "AWQ of the version gemv"),
        (MODELOPT | {"quant_algo": "W4A8_AWQ"}, "modelopt's W4A8_AWQ"),
        (AUTO_ROUND | {"packing_format": "auto_round:fp8"}, "AutoRound in the form auto_round:fp8"),
        (QWEN_FP8 | {"fmt": "e5m2"}, "FP8 in the format e5m2"),
        (QWEN_FP8 | {"weight_block_size": [128]}, "weight_block_size"),
        (QWEN_FP8 | {"weight_block_size": [0, 128]}, "weight_block_size"),
        (compressed("mxfp6-pack-quantized", num_bits=6, type="float"), "mxfp6-pack-quantized"),
        (W4A16 | {"config_groups": {}}, "nothing that it names"),
        (compressed("int-quantized", num_bits=8, strategy="block"), "a scale for each block"),
        ("gptq", "named fields"),
        (GPTQ | {"bits": "4"}, "quantization_config.bits"),
    ],
)
def test_what_cannot_be_read_is_named(given: object, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        read(given)


def shapes_of(given: object, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], ...]]:
    quantization = read(given)
    assert quantization is not None
    parts = stored_parts(quantization, shape)
    return {part.suffixes[0]: part.shapes for part in parts}


def test_parts_have_the_shapes_that_the_formats_say() -> None:
    matrix = (96, 256)

    assert shapes_of(GPTQ, matrix) == {
        ".qweight": ((32, 96),),
        ".qzeros": ((2, 12),),
        ".scales": ((2, 96),),
        ".g_idx": ((256,),),
    }
    assert shapes_of(GPTQ_V2, matrix)[".scales"] == ((1, 96),)
    assert shapes_of(AWQ, matrix) == {
        ".qweight": ((256, 12),),
        ".qzeros": ((2, 12),),
        ".scales": ((2, 96),),
    }
    assert shapes_of(QWEN_FP8, matrix) == {".weight": (matrix,), ".weight_scale": ((1, 2),)}
    assert (96, 1) in shapes_of(FBGEMM, matrix)[".weight_scale"]
    assert () in shapes_of(AUTO_FP8, matrix)[".weight_scale"]
    assert shapes_of(W4A16, matrix) == {
        ".weight_packed": ((96, 32),),
        ".weight_scale": ((96, 2),),
        ".weight_g_idx": ((256,),),
    }
    assert shapes_of(GPTQ, (96,)) == {}


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.layers.0.mlp.up_proj.qweight", "model.layers.0.mlp.up_proj.weight"),
        ("a.g_idx", "a.weight"),
        ("a.weight_scale_inv", "a.weight"),
        ("a.weight_packed", "a.weight"),
        ("a.biases", "a.weight"),
        ("a.SCB", "a.weight"),
        ("a.weight.absmax", "a.weight"),
        ("a.weight.quant_state.bitsandbytes__nf4", "a.weight"),
        ("a.weight", "a.weight"),
        ("a.bias", "a.bias"),
        ("weight_scale", "weight_scale"),
    ],
)
def test_a_part_knows_its_matrix(stored: str, name: str) -> None:
    assert weight_name(stored) == name


def test_blocks_of_gguf_are_those_of_the_package() -> None:
    for name, (inputs, nbytes) in GGUF_BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (inputs, nbytes)
        assert gguf_bytes(f"GGUF_{name}", (3, 5 * inputs)) == 15 * nbytes
    assert gguf_bytes("GGUF_Q4_K", (3, 32)) is None
    assert gguf_bytes("GGUF_Q4_K", ()) is None
    assert gguf_bytes("Q4_K", (3, 256)) is None
    assert gguf_bytes("GGUF_Q9_K", (3, 256)) is None


def test_what_has_more_than_4_bits_is_read_by_layer_and_role() -> None:
    found = read_quantization(
        Fields(
            {
                "quantization_config": GGUF
                | {"finer": {"qkv": [0, 3], "down": [3]}, "coarse_head": True}
            }
        )
    )

    assert found is not None
    assert found.fits_offsets
    assert found.has_coarse_head
    assert [found.higher_precision_roles(layer) for layer in (0, 1, 3)] == [
        {"qkv"},
        set(),
        {"qkv", "down"},
    ]
    assert found.has_higher_precision("model.layers.3.mlp.experts.17.down_proj.weight")
    assert found.has_higher_precision("language_model.model.layers.0.self_attn.qkv_proj.weight")
    assert not found.has_higher_precision("model.layers.30.self_attn.v_proj.weight")
    assert not found.has_higher_precision("model.layers.3.mlp.up_proj.weight")
    assert not found.has_higher_precision("model.layers.3.input_layernorm.weight")


@pytest.mark.parametrize(
    "finer", [[1], {"down": [-1]}, {"down": [1024]}, {"down": "all"}, {"qkv": [0] * 1025}]
)
def test_what_makes_no_sense_as_finer_is_refused(finer: object) -> None:
    with pytest.raises(InvalidConfigError, match="finer"):
        read_quantization(Fields({"quantization_config": GGUF | {"finer": finer}}))
