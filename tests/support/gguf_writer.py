"""Write small models as GGUF, as llama.cpp's converter does (`conversion/*.py` there)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf_fields import add_sizes
from gguf_tensors import add_learned, joined, joined_heads, tensors_of
from torch import Tensor

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "Llama4ForCausalLM": "llama4",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma4ForCausalLM": "gemma4",
    "Glm4ForCausalLM": "glm4",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "Olmo2ForCausalLM": "olmo2",
    "GraniteForCausalLM": "granite",
    "GemmaForCausalLM": "gemma",
    "Olmo3ForCausalLM": "olmo2",
    "SeedOssForCausalLM": "seed_oss",
    "Ministral3ForCausalLM": "mistral3",
    "SmolLM3ForCausalLM": "smollm3",
    "CohereForCausalLM": "command-r",
    "Cohere2ForCausalLM": "cohere2",
    "Exaone4ForCausalLM": "exaone4",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "OlmoeForCausalLM": "olmoe",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "Glm4MoeForCausalLM": "glm4moe",
    "Dots1ForCausalLM": "dots1",
    "ExaoneMoeForCausalLM": "exaone-moe",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Glm4MoeLiteForCausalLM": "deepseek2",
    "GlmMoeDsaForCausalLM": "glm-dsa",
    "KimiLinearForCausalLM": "kimi-linear",
    "GptOssForCausalLM": "gpt-oss",
    "NemotronHForCausalLM": "nemotron_h",
    "ArceeForCausalLM": "arcee",
    "Lfm2ForCausalLM": "lfm2",
    "FalconH1ForCausalLM": "falcon-h1",
    "Lfm2MoeForCausalLM": "lfm2moe",
    "Step3p7ForConditionalGeneration": "step35",
    "Qwen4ExpForCausalLM": "qwen4exp",
    "MiMoV2FlashForCausalLM": "mimo2",
    "AfmoeForCausalLM": "afmoe",
    "LagunaForCausalLM": "laguna",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitehybrid",
    "Mistral4ForCausalLM": "mistral4",
    "DeepseekV32ForCausalLM": "deepseek32",
    "GlmForCausalLM": "chatglm",
    "SolarOpenForCausalLM": "glm4moe",
    "MiniMaxM3SparseForConditionalGeneration": "minimax-m3",
    "HYV3ForCausalLM": "hy_v3",
    "MuseGlimmerForConditionalGeneration": "muse-glimmer",
    "MellumForCausalLM": "mellum",
    "YoutuForCausalLM": "deepseek2",
    "Starcoder2ForCausalLM": "starcoder2",
    "StableLmForCausalLM": "stablelm",
    "PhiForCausalLM": "phi2",
    "PhimoeForCausalLM": "phimoe",
    "NemotronForCausalLM": "nemotron",
    "Jais2ForCausalLM": "jais2",
    "ApertusForCausalLM": "apertus",
}
# What Kimi Linear calls fields that others have too.
_OWN_FIELDS = {
    "model_max_length": "max_position_embeddings",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
}
TOKENS = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a")


def write_gguf(
    folder: Path,
    path: Path,
    *,
    kind: str = "F32",
    kinds: Mapping[str, str] | None = None,
    joins_experts: bool = False,
    joins_heads: bool = False,
    fields: Mapping[str, object] | None = None,
    vocabulary: bool = True,
    more_tokens: Sequence[str] = (),
    architecture: str | None = None,
    more_tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the model of a folder as one file.

    Args:
        folder: contains `config.json` and `model.safetensors`.
        path: the file to write.
        kind: the type of matrices; F16 replaces it where rows are no multiple of its blocks.
        kinds: other types, by the tensors' names in the file.
        joins_experts: whether gates and ups of all experts are one tensor, as newer files have them.
        joins_heads: whether queries, keys and values are one tensor, as they are in some files.
        fields: fields to add to the file, or to replace.
        vocabulary: whether to add a small vocabulary of SentencePiece's kind.
        more_tokens: special ones behind these.
        architecture: as the file calls it; None: as it calls that of the folder's config.
        more_tensors: of something beside the model, in f32.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {ours: config[own] for own, ours in _OWN_FIELDS.items() if own in config}
    kinds_of_halves = config.get("layers_block_type", ())
    if architecture is None:
        architecture = FAMILIES[config["architectures"][0]] + "_moe" * ("moe" in kinds_of_halves)
    if architecture in ("step35", "minimax-m3", "muse-glimmer"):  # the text of a larger model
        config = {"tie_word_embeddings": False} | config["text_config"]
    config.setdefault("num_hidden_layers", len(kinds_of_halves))
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, config, architecture)
    if vocabulary:
        add_sentence_piece(writer, (*TOKENS, *more_tokens))
    for name, value in (fields or {}).items():
        _add_field(writer, name, value)
    if architecture == "apertus":
        add_learned(writer, folder, config["num_hidden_layers"])
    tensors = tensors_of(folder, config, architecture)
    tensors = joined_heads(tensors) if joins_heads else tensors
    for name, values in (joined(tensors) if joins_experts else tensors).items():
        _add_tensor(writer, name, values, (kinds or {}).get(name, kind))
    for name, values in (more_tensors or {}).items():
        writer.add_tensor(name, values.float().contiguous().numpy())
    finish(writer)
    return path


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sentence_piece(writer: gguf.GGUFWriter, tokens: Sequence[str]) -> None:
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_token_types(
        [
            kinds.get(token, 6 if token.startswith("<0x") else 3 if token.startswith("<") else 1)
            for token in tokens
        ]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _add_field(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case list() | tuple():
            writer.add_array(name, value)
        case _:
            raise TypeError(name)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Tensor, kind: str) -> None:
    array = values.contiguous().numpy()
    dtype = gguf.GGMLQuantizationType[kind]
    if (
        values.dim() < 2
        or name.endswith(".bias")
        or "ffn_gate_inp" in name
        or name.startswith("rope_")
    ):
        writer.add_tensor(name, array.astype(np.float32))
        return
    if array.shape[-1] % gguf.GGML_QUANT_SIZES[dtype][0]:
        dtype = gguf.GGMLQuantizationType.F16
    writer.add_tensor(name, quantise_blocks(array, dtype), raw_dtype=dtype)


def quantise_blocks(array: np.ndarray, dtype: gguf.GGMLQuantizationType) -> np.ndarray:
    """(…, width) → (…, bytes). Makes Q4_K too, which the `gguf` package cannot."""
    if dtype != gguf.GGMLQuantizationType.Q4_K:
        return gguf.quants.quantize(array, dtype)
    groups = array.reshape(-1, 8, 32)
    least, most = groups.min(-1).clip(max=0), groups.max(-1)
    scales, sixths = _in_six_bits((most - least) / 15)
    minima, six_minima = _in_six_bits(-least)
    worth, less = (
        (factor.astype(np.float32) * six)[..., None]
        for factor, six in ((scales, sixths), (minima, six_minima))
    )
    quotients = np.divide(groups + less, worth, out=np.zeros_like(groups), where=worth != 0)
    integers = quotients.round().clip(0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    low, high = (
        np.concatenate((sixths[:, part], six_minima[:, part]), -1)
        for part in (slice(0, 4), slice(4, 8))
    )  # layout of `get_scale_min_k4` of ggml-quants.c
    factors = (low | high >> 4 << 6, sixths[:, 4:] & 15 | (six_minima[:, 4:] & 15) << 4)
    parts = (
        scales.view(np.uint8),
        minima.view(np.uint8),
        *factors,
        (integers[:, :, 0] | integers[:, :, 1] << 4).reshape(-1, 128),
    )
    return np.concatenate(parts, -1).reshape(*array.shape[:-1], -1)


def _in_six_bits(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise (blocks, 8) to six bits: return factors (blocks, 1) in f16, and integers."""
    factor = (numbers.max(-1, keepdims=True) / 63).astype(np.float16)
    quotients = np.divide(numbers, factor, out=np.zeros_like(numbers), where=factor != 0)
    return factor, quotients.round().clip(0, 63).astype(np.uint8)
