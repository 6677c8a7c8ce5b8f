"""Write models that see as GGUF: the decoder, and its tower as a projector, as llama.cpp's converter does."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_tensors import permute
from gguf_writer import finish, quantise_blocks, write_gguf
from safetensors.torch import load_file, save_file
from torch import Tensor

from potluck.model.families.table import WITH_TEXT
from potluck.model.naming import decoder_names
from potluck.model.vision.spec import is_of_tower

DECODERS = {
    "Gemma3ForConditionalGeneration": ("gemma3", "gemma3"),
    "Gemma4ForConditionalGeneration": ("gemma4", "gemma4v"),
    "Gemma4UnifiedForConditionalGeneration": ("gemma4", "gemma4uv"),
    "Glm4vForConditionalGeneration": ("glm4", "glm4v"),
    "Glm4vMoeForConditionalGeneration": ("glm4moe", "glm4v"),
    "Idefics3ForConditionalGeneration": ("llama", "idefics3"),
    "InternVLForConditionalGeneration": ("qwen3", "internvl"),
    "Llama4ForConditionalGeneration": ("llama4", "llama4"),
    "LightOnOcrForConditionalGeneration": ("qwen3", "lightonocr"),
    "Mistral3ForConditionalGeneration": ("llama", "pixtral"),
    "LlavaForConditionalGeneration": ("llama", "pixtral"),
    "Qwen2VLForConditionalGeneration": ("qwen2vl", "qwen2vl_merger"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2vl", "qwen2.5vl_merger"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3vlmoe", "qwen3vl_merger"),
    "Qwen3VLForConditionalGeneration": ("qwen3vl", "qwen3vl_merger"),
    "Qwen3_5ForConditionalGeneration": ("qwen35", "qwen3vl_merger"),
}
"""For each architecture those of the two files."""


def write_seeing(
    folder: Path,
    into: Path,
    *,
    kind: str = "F32",
    more_tokens: Sequence[str] = (),
    template: str = "",
    is_one: bool = False,
    **changes: Any,
) -> tuple[Path, Path]:
    """Write the model of a folder as two files.

    Args:
        folder: has `config.json` and `model.safetensors`.
        into: the folder for the files.
        kind: the type of the tower's matrices.
        more_tokens: see `write_gguf`.
        template: of chats.
        is_one: whether the tower is in the decoder's file, as Ollama writes Gemma 3; there is no other one then.
        changes: see `write_projector`.

    Returns:
        The decoder's file, and the projector's.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    whole = config["architectures"][0]
    text, stored = config["text_config"], load_file(folder / "model.safetensors")
    names = decoder_names(stored)
    tensors = {names[name]: values for name, values in stored.items()}
    alone = into / "alone"
    alone.mkdir(parents=True)
    family = WITH_TEXT[whole].get(text["model_type"]) or next(iter(WITH_TEXT[whole].values()))
    about = {"tie_word_embeddings": False} | text | {"architectures": [family]}
    (alone / "config.json").write_text(json.dumps(about))
    decoder = {name: values for name, values in tensors.items() if not is_of_tower(name)}
    save_file(decoder, alone / "model.safetensors")
    architecture, _ = _kinds(config)
    sections = (text.get("rope_parameters") or {}).get("mrope_section")
    fields: dict[str, object] = {"tokenizer.chat_template": template} if template else {}
    if sections is not None:
        fields[f"{architecture}.rope.dimension_sections"] = [*sections, 0]
    tower = {name: values for name, values in tensors.items() if is_of_tower(name)}
    if is_one:
        fields |= _inner_fields(config)
    file = write_gguf(
        alone,
        into / "model.gguf",
        architecture=architecture,
        fields=fields,
        more_tokens=more_tokens,
        more_tensors=dict(_inner(name, values) for name, values in tower.items())
        if is_one
        else None,
    )
    if is_one:
        return file, file
    return file, write_projector(into / "mmproj-model.gguf", config, tower, kind=kind, **changes)


def _kinds(config: Mapping[str, Any]) -> tuple[str, str]:
    """What the two files are called."""
    is_clip = config["vision_config"].get("model_type") == "clip_vision_model"
    return ("llama", "mlp") if is_clip else DECODERS[config["architectures"][0]]


def _inner_fields(config: Mapping[str, Any]) -> dict[str, object]:
    """What Ollama says of the tower of Gemma 3 (`convert/convert_gemma3.go`)."""
    eye = config["vision_config"]
    said = {
        "vision.block_count": eye["num_hidden_layers"],
        "vision.embedding_length": eye["hidden_size"],
        "vision.feed_forward_length": eye["intermediate_size"],
        "vision.image_size": eye["image_size"],
        "vision.patch_size": eye["patch_size"],
        "vision.num_channels": 3,
        "vision.attention.head_count": eye["num_attention_heads"],
        "vision.attention.layer_norm_epsilon": eye["layer_norm_eps"],
        "mm.tokens_per_image": config["mm_tokens_per_image"],
    }
    return {f"gemma3.{name}": value for name, value in said.items()}


def _inner(name: str, values: Tensor) -> tuple[str, Tensor]:
    """A tensor of the tower as Ollama names it: the replacements of its converter, in their order."""
    for ours, theirs in (
        ("vision_tower.embeddings", "v"),
        ("vision_tower", "v"),
        ("encoder.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.out_proj", "attn_output"),
        ("input_projection_weight", "input_projection.weight"),
        ("multi_modal_projector", "mm"),
    ):
        name = name.replace(ours, theirs)
    is_whole = not name.startswith("v.") and name.endswith("_norm.weight")
    return name, values + 1 if is_whole else values


def write_projector(
    path: Path,
    config: Mapping[str, Any],
    tower: Mapping[str, Tensor],
    *,
    kind: str = "F32",
    is_old: bool = False,
    sizes: tuple[int, int] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Path:
    """Write a tower as `MmprojModel` and those that it is the base of do.

    Args:
        path: the file to write.
        config: of the whole model.
        tower: its tensors, by our names.
        kind: the type of matrices.
        is_old: whether the matrices of MLPs have each other's names, as in the first files.
        sizes: pixels of a picture, the fewest and the most.
        fields: numbers and texts to replace; `is_first`: the file names no type and no kind, as the first ones of LLaVA.
    """
    eye = config["vision_config"]
    _, projector = _kinds(config)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    replaced = dict(fields or {})
    if replaced.get("is_first"):
        writer.add_bool("clip.has_llava_projector", True)
    else:
        writer.add_type("mmproj")
        writer.add_clip_projector_type(replaced.get("projector_type", projector))
    rows = replaced.get("projection_dim", config["text_config"]["hidden_size"])
    writer.add_vision_projection_dim(rows)
    writer.add_vision_image_size(_side(eye.get("image_size", 560)))
    writer.add_vision_patch_size(_side(eye["patch_size"]))
    # As Qwen2-VL and Gemma 4 12B call it.
    width = eye.get("embed_dim") or eye.get("mm_embed_dim") or eye["hidden_size"]
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(
        eye["mlp_ratio"] * width if "mlp_ratio" in eye else eye.get("intermediate_size", 0)
    )
    layers = eye.get("num_hidden_layers", eye.get("depth", 0))
    writer.add_vision_block_count(replaced.get("block_count", layers))
    heads = eye.get("num_attention_heads", eye.get("num_heads", 0))
    writer.add_vision_head_count(replaced.get("head_count", heads))
    writer.add_vision_image_mean([0.5, 0.4, 0.3])
    writer.add_vision_image_std([0.5, 0.25, 0.2])
    if sizes is not None:
        writer.add_vision_min_pixels(sizes[0])
        writer.add_vision_max_pixels(sizes[1])
    merge_type = replaced.get("merge_type", "spatial_unpad")
    _add_facts(writer, config, eye, projector, replaced.get("feature_layer"), merge_type)
    # A merger's matrices are numbered up to 3, where a real tower has more layers than that.
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(layers, 4))
    for name, values in tower.items():
        for theirs, some in _converted(names, name, values.float(), eye, projector).items():
            _add(writer, _swapped(theirs) if is_old else theirs, some, kind)
    finish(writer)
    return path


def _add_facts(
    writer: gguf.GGUFWriter,
    config: Mapping[str, Any],
    eye: Mapping[str, Any],
    projector: str,
    feature_layer: int | None,
    merge_type: str,
) -> None:
    writer.add_vision_attention_layernorm_eps(eye.get("layer_norm_eps", 1e-6))
    match projector:
        case "gemma3":
            writer.add_vision_use_gelu(True)
            side = eye["image_size"] // eye["patch_size"]
            cells = int(config["mm_tokens_per_image"] ** 0.5)
            writer.add_vision_projector_scale_factor(side // cells)
        case "glm4v":
            writer.add_vision_use_silu(True)
            writer.add_vision_attention_layernorm_eps(eye["rms_norm_eps"])
        case "qwen2vl_merger":
            writer.add_vision_spatial_merge_size(eye["spatial_merge_size"])
        case "qwen2.5vl_merger":
            writer.add_vision_use_silu(True)
            writer.add_vision_n_wa_pattern(eye["fullatt_block_indexes"][0] + 1)
            writer.add_vision_window_size(eye["window_size"])
        case "qwen3vl_merger":
            writer.add_vision_use_gelu(True)
            writer.add_vision_spatial_merge_size(eye["spatial_merge_size"])
            deep = eye.get("deepstack_visual_indexes", [])
            writer.add_vision_is_deepstack_layers([i in deep for i in range(eye["depth"])])
        case "gemma4v" | "gemma4uv":
            pass
        case "mlp":
            writer.add_vision_use_gelu(eye["hidden_act"] == "gelu")
            if feature_layer is not None:
                writer.add_array("clip.vision.feature_layer", [feature_layer])
            if shapes := config.get("image_grid_pinpoints"):
                writer.add_string("clip.vision.mm_patch_merge_type", merge_type)
                writer.add_array("clip.vision.image_grid_pinpoints", [*chain(*shapes)])
        case "idefics3":
            writer.add_vision_use_gelu(True)
            writer.add_vision_projector_scale_factor(config["scale_factor"])
            writer.add_vision_preproc_image_size(68)
        case "internvl" | "llama4":
            writer.add_vision_use_gelu(True)
            ratio = config.get("downsample_ratio", eye.get("pixel_shuffle_ratio", 0.5))
            writer.add_vision_projector_scale_factor(int(1 / ratio))
        case _:
            writer.add_vision_use_gelu(eye["hidden_act"] == "gelu")
            if "spatial_merge_size" in config:
                writer.add_vision_spatial_merge_size(config["spatial_merge_size"])


def _converted(
    names: gguf.TensorNameMap, name: str, values: Tensor, eye: Mapping[str, Any], projector: str
) -> dict[str, Tensor]:
    """What the converter makes of a tensor of Hugging Face."""
    if name == "visual.patch_embed.proj.weight":
        first, second = values.unbind(2)
        return {"v.patch_embd.weight": first, "v.patch_embd.weight.1": second}
    if projector in ("qwen2vl_merger", "qwen2.5vl_merger") and ".qkv." in name:
        parts = zip("qkv", values.chunk(3), strict=True)
        return {_name(names, name.replace("qkv", part)): some for part, some in parts}
    if projector == "qwen3vl_merger" and "merger" in name:
        return {_qwen3_name(name, eye): values}
    if projector == "lightonocr":
        name = name.replace("vision_encoder.", "vision_tower.")
        name = name.replace("vision_projection.", "multi_modal_projector.")
    if projector in ("pixtral", "lightonocr") and name.endswith(("q_proj.weight", "k_proj.weight")):
        values = permute(values, eye["num_attention_heads"])
    if projector in _RENAMED:
        return _RENAMED[projector](names, name, values)
    if projector == "gemma3":
        name = name.replace("vision_tower.", "vision_tower.vision_model.").replace(
            "_weight", ".weight"
        )
        values = values + 1 if "soft_emb_norm" in name else values
    return {_name(names, name): values}


def _gemma_4(names: gguf.TensorNameMap, name: str, values: Tensor) -> dict[str, Tensor]:
    """As `Gemma4VisionAudioModel.modify_tensors` makes it."""
    name = f"model.{name}".replace("model.vision_tower.encoder.", "vision_model.model.")
    name, values = name.replace(".linear.weight", ".weight"), values.view(values.shape or (1,))
    if name.endswith("position_embedding_table"):
        name += ".weight"
    if name.endswith("patch_embedder.input_proj.weight"):
        values = _colours_apart(values)
    return {_name(names, name): values}


def _gemma_4_unified(names: gguf.TensorNameMap, name: str, values: Tensor) -> dict[str, Tensor]:
    """As `Gemma4UnifiedVisionAudioModel.modify_tensors` makes it."""
    name = name.removeprefix("vision_embedder.").replace("pos_norm", "patch_ln3")
    if name == "pos_embedding":
        return {"v.position_embd.weight": values.permute(1, 0, 2)}
    if name.startswith("patch_dense"):
        is_matrix = values.dim() == 2
        values = _colours_apart(values).flatten(1) if is_matrix else values
        return {name.replace("patch_dense", "v.patch_embd"): values}
    if name.startswith("patch_ln"):
        values = _colours_apart(values[None]).flatten() if "ln1" in name else values
        return {name.replace("patch_ln", "v.patch_norm."): values}
    return {_name(names, f"model.{name}"): values}


def _colours_apart(values: Tensor) -> Tensor:
    """(N, side · side · 3) → (N, 3, side, side)."""
    side = int((values.shape[1] // 3) ** 0.5)
    return values.view(-1, side, side, 3).permute(0, 3, 1, 2)


def _idefics_3(names: gguf.TensorNameMap, name: str, values: Tensor) -> dict[str, Tensor]:
    """As `SmolVLMModel.modify_tensors` makes it."""
    return {_name(names, f"model.{name}"): values}


def _internvl(names: gguf.TensorNameMap, name: str, values: Tensor) -> dict[str, Tensor]:
    """As `InternVisionModel.modify_tensors` makes it."""
    for ours, theirs in (("layer_norm", "0"), ("linear_1", "1"), ("linear_2", "3")):
        name = name.replace(f"multi_modal_projector.{ours}", f"mlp1.{theirs}")
    name = name if name.startswith("mlp1") else f"model.{name}"
    if ".lambda_" in name or "position_embedding" in name:
        name += ".weight"
    return {_name(names, name): values}


def _llama_4(names: gguf.TensorNameMap, name: str, values: Tensor) -> dict[str, Tensor]:
    """As `Llama4VisionModel.modify_tensors` makes it."""
    if name.startswith("multi_modal_projector"):
        return {"mm.model.fc.weight": values}
    name += ".weight" if "positional_embedding" in name else ""
    # The map has this name a second time, for Gemma 4.
    return {_name(names, name).replace("attn_post_norm", "ln2"): values}


def _llava(names: gguf.TensorNameMap, name: str, values: Tensor) -> dict[str, Tensor]:
    """As the converter of LLaVA's own files makes it, which numbers the projector's matrices by their places."""
    for ours, theirs in (("linear_1", "0"), ("linear_2", "2")):
        name = name.replace(f"multi_modal_projector.{ours}", f"mm.{theirs}")
    if name == "image_newline":
        return {"model.image_newline": values}
    if name.startswith("mm."):
        return {name: values}
    if name.endswith("class_embedding"):
        return {"v.class_embd": values}
    return {_name(names, name.replace("vision_tower.", "vision_tower.vision_model.")): values}


_RENAMED = {
    "mlp": _llava,
    "gemma4v": _gemma_4,
    "gemma4uv": _gemma_4_unified,
    "idefics3": _idefics_3,
    "internvl": _internvl,
    "llama4": _llama_4,
}


def _qwen3_name(name: str, eye: Mapping[str, Any]) -> str:
    """As `Qwen3VLVisionModel.modify_tensors` makes it."""
    if name.startswith("visual.deepstack_merger_list."):
        number, rest = name.split(".", 3)[2:]
        layer = eye["deepstack_visual_indexes"][int(number)]
        return f"v.deepstack.{layer}.{rest.replace('linear_', '')}"
    rest = name.removeprefix("visual.merger.")
    for ours, theirs in (("norm", "v.post_ln"), ("linear_fc1", "mm.0"), ("linear_fc2", "mm.2")):
        rest = rest.replace(ours, theirs)
    return rest


_BOUNDS = (".input_min", ".input_max", ".output_min", ".output_max")


def _side(size: int | list[int]) -> int:
    return size[0] if isinstance(size, list) else size


def _swapped(name: str) -> str:
    places = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return ".".join(places.get(part, part) for part in name.split("."))


def _add(writer: gguf.GGUFWriter, name: str, values: Tensor, kind: str) -> None:
    array = values.contiguous().numpy()
    if values.dim() != 2 or "position_embd" in name:
        writer.add_tensor(name, array.astype(np.float32))
        return
    dtype = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, quantise_blocks(array, dtype), raw_dtype=dtype)


def _name(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, (".weight", ".bias", *_BOUNDS))
    assert found is not None, name
    return found
