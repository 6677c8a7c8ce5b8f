"""A model that cannot be run is told what it lacks, and what is nearest to it."""

import pytest
import transformers

from potluck.errors import UnknownArchitectureError
from potluck.model.config import ModelConfig
from potluck.model.families.table import FAMILIES, WITH_TEXT
from potluck.model.unsupported import UNSUPPORTED, missing_of


def refusal(config: dict[str, object]) -> UnknownArchitectureError:
    with pytest.raises(UnknownArchitectureError) as caught:
        ModelConfig.from_dict(config)
    return caught.value


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_in_the_table_exists_and_does_not_run(name: str) -> None:
    assert hasattr(transformers, name)
    assert name not in FAMILIES
    assert name not in WITH_TEXT
    assert UNSUPPORTED[name].nearest in FAMILIES


def test_a_known_family_is_refused_with_its_missing_block_and_the_nearest_that_runs() -> None:
    error = refusal({"architectures": ["JambaForCausalLM"], "num_experts": 8})

    assert "JambaForCausalLM" in error.message
    assert "a state space of its own kind" in error.message
    assert "nearest family that runs is GraniteMoeHybridForCausalLM" in error.message


@pytest.mark.parametrize(
    ("fields", "block", "nearest"),
    [
        ({"kv_lora_rank": 512, "n_routed_experts": 8}, "latent attention", "DeepseekV3ForCausalLM"),
        ({"index_topk": 2048, "kv_lora_rank": 512}, "indexer", "DeepseekV32ForCausalLM"),
        ({"mamba_d_state": 128, "num_experts": 8}, "state space", "LlamaForCausalLM"),
        ({"conv_L_cache": 3}, "short convolutions", "Lfm2ForCausalLM"),
        ({"num_local_experts": 8}, "mixture of experts", "Qwen3MoeForCausalLM"),
        ({"layer_norm_eps": 1e-5}, "LayerNorm", "LlamaForCausalLM"),
        ({"text_config": {"num_experts": 8}}, "mixture of experts", "Qwen3MoeForCausalLM"),
    ],
)
def test_of_an_unknown_family_the_fields_say_what_it_needs(
    fields: dict[str, object], block: str, nearest: str
) -> None:
    error = refusal({"architectures": ["NewForCausalLM"], **fields})

    assert "NewForCausalLM" in error.message
    assert block in error.message
    assert nearest in error.message


def test_what_says_nothing_is_refused_with_what_runs() -> None:
    error = refusal({"architectures": ["NewForCausalLM"], "hidden_size": 64})

    assert "needs" not in error.message
    assert all(name in error.message for name in FAMILIES)


def test_the_nearest_is_always_one_that_runs() -> None:
    assert missing_of("NemotronHForCausalLM", (), ["LlamaForCausalLM"]) is None


def test_a_block_that_only_some_of_a_family_have_is_named() -> None:
    error = refusal({"architectures": ["CohereForCausalLM"], "use_qk_norm": True})

    assert "layer norms of queries and keys" in error.message
    assert error.data["block"]
