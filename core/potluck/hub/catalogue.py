"""A short list of models that Potluck recommends, with what is known of them without asking the Hub.

Sizes are those of the Hub's pages, rounded; the exact ones are asked for before a download. The configs are
those of the models themselves: they say what fits before anything is downloaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.api.values.hub import HubModel, Variant
from potluck.hub.sentences import page_of
from potluck.model.shapes.table import SHAPES

_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """A model, in the form that suits home computers best."""

    model: HubModel
    config: Mapping[str, object]  # of the model that the form was made from


def _qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool
) -> Mapping[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": tied,
    }


_MISTRAL_7B: Mapping[str, object] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32768,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}
_GEMMA3_12B: Mapping[str, object] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
_PHI4: Mapping[str, object] = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "vocab_size": 100352,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 250000.0,
    "tie_word_embeddings": False,
}


def _entry(
    name: str,
    variant: str,
    gigabytes: float,
    billions: float,
    license_name: str,
    about: str,
    config: Mapping[str, object],
) -> Recommended:
    form = Variant(name=variant, format="gguf", nbytes=int(gigabytes * _GB))
    names = config["architectures"]
    assert isinstance(names, list)
    position = config["max_position_embeddings"]
    assert isinstance(position, int)
    return Recommended(
        model=HubModel(
            name=name,
            page=page_of(name),
            about=about,
            parameters=int(billions * 1e9),
            license=license_name,
            architecture=str(names[0]),
            context=position,
            has_chat_template=True,
            variants=(form,),
            best=variant,
        ),
        config=config,
    )


RECOMMENDED: Sequence[Recommended] = (
    _entry(
        "Qwen/Qwen3-0.6B-GGUF", "Q8_0", 0.64, 0.6, "apache-2.0",
        "Very small and quick: to try things out, or for an old computer.",
        _qwen3(1024, 3072, 28, 16, tied=True),
    ),
    _entry(
        "Qwen/Qwen3-1.7B-GGUF", "Q8_0", 1.83, 1.7, "apache-2.0",
        "Small and quick, for short texts and simple questions.",
        _qwen3(2048, 6144, 28, 16, tied=True),
    ),
    _entry(
        "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2.02, 3.2, "llama3.2",
        "Small, good at summaries and everyday questions.",
        SHAPES["llama-3b"],
    ),
    _entry(
        "Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2.5, 4.0, "apache-2.0",
        "The best small one: it reasons well and knows many languages.",
        _qwen3(2560, 9728, 36, 32, tied=True),
    ),
    _entry(
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Q4_K_M", 4.37, 7.2, "apache-2.0",
        "A proven all-rounder of moderate size.",
        _MISTRAL_7B,
    ),
    _entry(
        "Qwen/Qwen3-8B-GGUF", "Q4_K_M", 5.03, 8.2, "apache-2.0",
        "A good choice for one computer with 16 GB: reasons well, many languages.",
        _qwen3(4096, 12288, 36, 32, tied=False),
    ),
    _entry(
        "bartowski/google_gemma-3-12b-it-GGUF", "Q4_K_M", 7.3, 11.8, "gemma",
        "Writes well, in very many languages.",
        _GEMMA3_12B,
    ),
    _entry(
        "Qwen/Qwen3-14B-GGUF", "Q4_K_M", 9.0, 14.8, "apache-2.0",
        "For harder questions, on one large or two usual computers.",
        _qwen3(5120, 17408, 40, 40, tied=False),
    ),
    _entry(
        "bartowski/phi-4-GGUF", "Q4_K_M", 9.05, 14.7, "mit",
        "Strong at mathematics and logic, in English.",
        _PHI4,
    ),
    _entry(
        "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M", 18.6, 30.5, "apache-2.0",
        "Large, but quick: each word needs only a tenth of it.",
        SHAPES["qwen3-30b-a3b"],
    ),
    _entry(
        "Qwen/Qwen3-32B-GGUF", "Q4_K_M", 19.8, 32.8, "apache-2.0",
        "Strong in everything, for several computers together.",
        _qwen3(5120, 25600, 64, 64, tied=False),
    ),
    _entry(
        "bartowski/Llama-3.3-70B-Instruct-GGUF", "Q4_K_M", 42.5, 70.6, "llama3.3",
        "One of the best that a home can run, on several computers together.",
        SHAPES["llama-70b"],
    ),
)  # fmt: skip
