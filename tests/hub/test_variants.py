"""Which files of a repository are a model, and what its names say."""

import pytest

from potluck.hub.variants import RemoteFile, is_safe, kind_of, quantised_config, variants_of
from potluck.model.config import ModelConfig
from potluck.model.nearest import nearest_schemes
from potluck.model.shapes.table import SHAPES


def found(*names: str) -> dict[str, list[str]]:
    """The files of each variant of a repository with these files."""
    files = [RemoteFile(name=name, nbytes=1, digest="0" * 64) for name in names]
    return {v.name: [file.name for file in v.files] for v in variants_of(files)}


def test_shards_and_their_index_are_one_model():
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = "model.safetensors.index.json"

    assert found("config.json", index, *shards, "consolidated.safetensors") == {
        "safetensors": ["config.json", index, *shards]
    }


def test_mistrals_own_layout_is_taken_where_there_is_no_other():
    shards = [f"consolidated-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = "consolidated.safetensors.index.json"

    assert found("tekken.json", "params.json", index, *shards) == {
        "safetensors": ["params.json", "tekken.json", index, *shards]
    }
    assert found("params.json", "consolidated.safetensors", "config.json", "model.safetensors") == {
        "safetensors": ["config.json", "model.safetensors"]
    }


def test_every_kind_of_tokenizer_belongs_to_a_model():
    names = ["config.json", "tokenizer.model", "tiktoken.model", "qwen.tiktoken"]

    assert found(*names, "model.safetensors")["safetensors"] == [*names, "model.safetensors"]


def test_weights_without_a_config_are_no_model():
    assert found("model.safetensors", "adapter.safetensors") == {}


def test_parts_of_a_gguf_model_belong_together_also_in_a_folder():
    parts = [f"Q8_0/big-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]

    assert found(*parts, "big-Q4_K_M-00001-of-00002.gguf") == {"Q8_0": parts}


@pytest.mark.parametrize(
    ("projectors", "taken"),
    [
        (["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], ["mmproj-F16.gguf"]),
        (["mmproj-a-Q8_0.gguf", "mmproj-a-f32.gguf"], ["mmproj-a-f32.gguf"]),
        (["mmproj-model.gguf"], ["mmproj-model.gguf"]),
        (["elsewhere/mmproj-F16.gguf"], []),
    ],
)
def test_a_model_that_can_see_comes_with_its_projector(projectors: list[str], taken: list[str]):
    names = ["a-Q4_K_M.gguf", "a-Q8_0.gguf", *projectors]
    files = [RemoteFile(name=name, nbytes=1, digest="0" * 64) for name in names]

    seeing = {v.name: [f.name for f in v.files] for v in variants_of(files, can_see=True)}

    assert seeing == {name: [f"a-{name}.gguf", *taken] for name in ("Q4_K_M", "Q8_0")}
    assert found(*names) == {name: [f"a-{name}.gguf"] for name in ("Q4_K_M", "Q8_0")}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q5_k_m.gguf", "Q5_K_M"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("phi-4.IQ4_XS.gguf", "IQ4_XS"),
        ("gemma-3-4b-it-BF16.gguf", "BF16"),
        ("model.gguf", "model"),
    ],
)
def test_quantisation_is_named_by_its_label(name: str, label: str):
    assert list(found(name)) == [label]


def test_two_files_of_one_label_are_told_apart():
    assert list(found("a-Q8_0.gguf", "b-Q8_0.gguf")) == ["Q8_0", "b-Q8_0"]


@pytest.mark.parametrize(
    "name",
    ["mmproj-F16.gguf", "x-imatrix.gguf", "x-TQ1_0.gguf", "x-IQ1_M.gguf", "x-MXFP4_MOE.gguf"],
)
def test_what_is_no_model_or_cannot_be_read_is_left_out(name: str):
    assert found(name) == {}


@pytest.mark.parametrize(
    ("label", "schemes"),
    [
        ("Q4_K_M", ("int4-offset", "int4-head8", "int4")),
        ("Q4_0", ("int4-head8", "int4")),
        ("Q6_K", ("int8", "int4-head8", "int4")),
        ("IQ2_XS", ("int4-head8", "int4")),
        ("BF16", ()),
    ],
)
def test_label_says_in_which_schemes_the_model_will_be_held(label: str, schemes: tuple[str, ...]):
    config = quantised_config(SHAPES["llama-1b"], label)

    assert config is not None
    assert nearest_schemes(ModelConfig.from_dict(config)) == schemes


def test_file_without_a_label_says_nothing():
    assert kind_of("model") is None
    assert quantised_config(SHAPES["llama-1b"], "model") is None


def test_decoder_of_a_multimodal_model_is_what_a_gguf_file_has():
    text = {**SHAPES["llama-1b"], "architectures": None}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}

    config = quantised_config(whole, "Q8_0")

    assert config is not None
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert config["hidden_size"] == text["hidden_size"]


@pytest.mark.parametrize("name", ["../x", "/x", "a//x", "a\\x", "c:x", "x\n", "a/./x", ""])
def test_name_that_could_lead_elsewhere_is_not_safe(name: str):
    assert not is_safe(name)
    assert is_safe("sub/model-00001-of-00002.gguf")
