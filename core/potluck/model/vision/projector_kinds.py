"""The kinds of GGUF projectors: what each calls its tensors, and which fields of a config its file gives.

Names and fields as llama.cpp's converters write them (`conversion/*.py`); what they leave out is as `tools/mtmd/clip.cpp`
has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from potluck.model.gguf.keys import Config, Keys
from potluck.model.vision.families import CONVERTED
from potluck.model.vision.towers.sizes import MAX_TOWER

ARCHITECTURE = "clip"
POSITIONS = "v.position_embd.weight"
BOUND = "v.blk.0.attn_q.input_max"
NEW_LINE = "model.image_newline"
_UNPADDED = "spatial_unpad"  # lines of squares, without what is black alone
_WINDOW = 112  # pixels of the side of a window of Qwen2.5-VL, which no file states
_GEMMA_CELL = 4  # patches of the side of a cell, where a file does not say
_GEMMA_4_CELL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorKind:
    """One kind of projector.

    Attributes:
        wholes: for each architecture of a decoder's GGUF file, that of the whole model.
        text: fields of the whole model's decoder that its own file lacks.
        has_layers: whether there is a tower; what has none projects the patches themselves.
        before: the norm before the first layer, where there is one.
        norm, products: the names of the merger's tensors.
        patch_norms: those of the norms of patches, where there are some.
        rows: a matrix with as many rows as the decoder has numbers, where `projection_dim` says something else.
        gelu: which one `clip.use_gelu` is.
        more: adds to the fields of the tower and of the whole model.
    """

    wholes: Mapping[str, str]
    text: Mapping[str, object] = field(default_factory=dict[str, object])
    has_layers: bool = True
    before: str = "v.pre_ln"
    norm: str = "v.post_ln"
    patch_norms: tuple[str, str] = ("v.patch_norm.1", "v.patch_norm.2")
    products: tuple[str, ...] = ("mm.0", "mm.2")
    rows: str = ""
    gelu: str = "gelu_pytorch_tanh"
    more: Callable[[Keys, Config, Config], None]


def layers_of(keys: Keys) -> int:
    """The layers of a tower."""
    layers = keys.integer("vision.block_count")
    if not 0 < layers <= MAX_TOWER:
        raise keys.invalid("vision.block_count", f"must be from 1 to {MAX_TOWER}")
    return layers


def size_of(keys: Keys, name: str, default: int | None = None) -> int:
    """A number that counts something of which there is at least one."""
    size = keys.integer(name, default)
    if size < 1:
        raise keys.invalid(name, "must be at least 1")
    return size


def _gemma(keys: Keys, eye: Config, whole: Config) -> None:
    patch = size_of(keys, "vision.patch_size")
    cell = size_of(keys, "vision.projector.scale_factor", _GEMMA_CELL)
    whole["mm_tokens_per_image"] = (keys.integer("vision.image_size") // patch // cell) ** 2
    eye["layer_norm_eps"] = keys.number("vision.attention.layer_norm_epsilon", 1e-6)
    eye[CONVERTED] = {"whole_norm": True}


def _qwen(keys: Keys, eye: Config, whole: Config) -> None:
    eye["spatial_merge_size"] = keys.integer("vision.spatial_merge_size", 2)
    is_apart = "v.blk.0.attn_q.weight" in keys.file.shapes
    eye[CONVERTED] = {"frames_apart": True, "qkv_apart": is_apart}


def _qwen_2(keys: Keys, eye: Config, whole: Config) -> None:
    _qwen(keys, eye, whole)
    width = eye["embed_dim"] = size_of(keys, "vision.embedding_length")
    eye["mlp_ratio"] = keys.integer("vision.feed_forward_length") / width
    del eye["hidden_size"]  # which is the decoder's, in that config


def _qwen_2_5(keys: Keys, eye: Config, whole: Config) -> None:
    _qwen(keys, eye, whole)
    every, layers = size_of(keys, "vision.n_wa_pattern"), layers_of(keys)
    eye["fullatt_block_indexes"] = list(range(every - 1, layers, every))
    eye["window_size"] = keys.integer("vision.window_size", _WINDOW)


def _qwen_3(keys: Keys, eye: Config, whole: Config) -> None:
    _qwen(keys, eye, whole)
    eye["num_position_embeddings"] = keys.rows(POSITIONS)
    flags = keys.items(f"{ARCHITECTURE}.vision.is_deepstack_layers")[:MAX_TOWER]
    eye["deepstack_visual_indexes"] = [layer for layer, flag in enumerate(flags) if flag]


def _pixtral_12b(keys: Keys, eye: Config, whole: Config) -> None:
    _pixtral(keys, eye, whole)
    whole["vision_feature_select_strategy"] = "full"


def _pixtral(keys: Keys, eye: Config, whole: Config) -> None:
    whole["spatial_merge_size"] = keys.integer("vision.spatial_merge_size", 1)
    whole["multimodal_projector_bias"] = "mm.1.bias" in keys.file.shapes
    eye["model_type"] = "pixtral"
    eye["rope_theta"] = keys.number("rope.freq_base", 10000.0)
    eye[CONVERTED] = {"pairs": True}


def _gemma_4(keys: Keys, eye: Config, whole: Config) -> None:
    _gemma_4_places(keys, eye)
    shapes = keys.file.shapes
    eye["num_key_value_heads"] = eye["num_attention_heads"]
    eye["head_dim"] = size_of(keys, "vision.embedding_length") // size_of(
        keys, "vision.attention.head_count"
    )
    eye["standardize"] = "v.std_bias" in shapes
    eye["use_clipped_linears"] = BOUND in shapes
    eye[CONVERTED] = {"patch_form": "convolution", "bounds_are_rows": BOUND in shapes}


def _gemma_4_unified(keys: Keys, eye: Config, whole: Config) -> None:
    eye["mm_posemb_size"] = _gemma_4_places(keys, eye)
    eye["mm_embed_dim"] = eye["output_proj_dims"] = eye["hidden_size"]
    eye[CONVERTED] = {"patch_form": "matrix", "axes_apart": True}


def _gemma_4_places(keys: Keys, eye: Config) -> int:
    """The places of each axis, with the fields that all towers of Gemma 4 have."""
    shape = keys.file.shapes.get(POSITIONS, ())
    if len(shape) != 3:
        raise keys.invalid(POSITIONS, "must be two tables of positions", whole=True)
    eye["position_embedding_size"] = shape[1]
    eye["pooling_kernel_size"] = size_of(keys, "vision.projector.scale_factor", _GEMMA_4_CELL)
    eye["rms_norm_eps"] = keys.number("vision.attention.layer_norm_epsilon", 1e-6)
    eye["hidden_activation"] = eye["hidden_act"]
    return shape[1]


def _internvl(keys: Keys, eye: Config, whole: Config) -> None:
    whole["downsample_ratio"] = 1 / size_of(keys, "vision.projector.scale_factor", 2)
    shapes = keys.file.shapes
    eye["norm_type"] = "layer_norm" if "v.blk.0.ln1.bias" in shapes else "rms_norm"
    eye["use_qk_norm"] = "v.blk.0.attn_q_norm.weight" in shapes
    eye["attention_bias"] = "v.blk.0.attn_q.bias" in shapes
    eye["layer_norm_eps"] = keys.number("vision.attention.layer_norm_epsilon", 1e-6)


def _glm_4(keys: Keys, eye: Config, whole: Config) -> None:
    _qwen(keys, eye, whole)
    eye["rms_norm_eps"] = keys.number("vision.attention.layer_norm_epsilon", 1e-5)


def _idefics_3(keys: Keys, eye: Config, whole: Config) -> None:
    whole["scale_factor"] = size_of(keys, "vision.projector.scale_factor", 2)
    eye["layer_norm_eps"] = keys.number("vision.attention.layer_norm_epsilon", 1e-6)


def _llama_4(keys: Keys, eye: Config, whole: Config) -> None:
    eye["pixel_shuffle_ratio"] = 1 / size_of(keys, "vision.projector.scale_factor", 2)
    eye["projector_input_dim"] = keys.rows("mm.model.mlp.1.weight")
    eye["projector_output_dim"] = eye["vision_output_dim"] = keys.rows("mm.model.mlp.2.weight")


def _llava(keys: Keys, eye: Config, whole: Config) -> None:
    """CLIP's tower up to a layer that the file says, or up to the last one that is used.

    The first converters left out the layer that is not used, and the norm behind it.
    """
    shapes, layers = keys.file.shapes, layers_of(keys)
    used = layers - 1 if "v.post_ln.weight" in shapes else layers
    said = keys.items(f"{ARCHITECTURE}.vision.feature_layer")
    if numbers := [layer for layer in said if isinstance(layer, int)]:
        used = numbers[0]
        if len(numbers) > 1 or not 0 < used <= layers:
            raise keys.invalid("vision.feature_layer", "must be one of the tower's layers")
    eye["num_hidden_layers"] = eye["depth"] = used + 1
    whole["vision_feature_layer"] = -2
    whole["multimodal_projector_bias"] = "mm.0.bias" in shapes
    eye["model_type"] = "clip_vision_model"
    eye["layer_norm_eps"] = keys.number("vision.attention.layer_norm_epsilon", 1e-5)
    eye["hidden_act"] = "gelu" if keys.flag("use_gelu", False) else "quick_gelu"


def _llava_next(keys: Keys, eye: Config, whole: Config) -> None:
    _llava(keys, eye, whole)
    if keys.text("vision.mm_patch_merge_type", _UNPADDED) != _UNPADDED:
        raise keys.invalid("vision.mm_patch_merge_type", "must be spatial_unpad")
    sides = keys.items(f"{ARCHITECTURE}.vision.image_grid_pinpoints")
    whole["image_grid_pinpoints"] = [sides[at : at + 2] for at in range(0, len(sides), 2)]


_LLAVA = ProjectorKind(
    wholes=dict.fromkeys(("llama", "qwen2"), "LlavaForConditionalGeneration"),
    norm="",
    rows="mm.2.weight",
    more=_llava,
)
PROJECTORS: Mapping[str, ProjectorKind] = {
    "gemma3": ProjectorKind(
        wholes={"gemma3": "Gemma3ForConditionalGeneration"},
        norm="mm.soft_emb_norm",
        products=("mm.input_projection.weight",),
        more=_gemma,
    ),
    "gemma4v": ProjectorKind(
        wholes={"gemma4": "Gemma4ForConditionalGeneration"},
        text={"use_bidirectional_attention": "vision"},
        products=("mm.input_projection",),
        more=_gemma_4,
    ),
    # E2B and E4B, whose decoders read pictures as they read text.
    "gemma4v-bounds": ProjectorKind(
        wholes={"gemma4": "Gemma4ForConditionalGeneration"},
        products=("mm.input_projection",),
        more=_gemma_4,
    ),
    "gemma4uv": ProjectorKind(
        wholes={"gemma4": "Gemma4UnifiedForConditionalGeneration"},
        text={"use_bidirectional_attention": "vision"},
        has_layers=False,
        before="v.patch_norm.3",
        products=("mm.input_projection",),
        more=_gemma_4_unified,
    ),
    "internvl": ProjectorKind(
        wholes=dict.fromkeys(
            ("llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss"), "InternVLForConditionalGeneration"
        ),
        norm="mm.model.mlp.0",
        products=("mm.model.mlp.1", "mm.model.mlp.3"),
        gelu="gelu",
        more=_internvl,
    ),
    "mlp": _LLAVA,  # LLaVA 1.5
    "mlp_grids": replace(  # LLaVA 1.6, whose files name the same kind
        _LLAVA,
        wholes=dict.fromkeys(_LLAVA.wholes, "LlavaNextForConditionalGeneration"),
        more=_llava_next,
    ),
    "glm4v": ProjectorKind(
        wholes={
            "glm4": "Glm4vForConditionalGeneration",
            "glm4moe": "Glm4vMoeForConditionalGeneration",
        },
        norm="mm.post_norm",
        patch_norms=("", "v.norm_embd"),
        products=("mm.patch_merger", "mm.model.fc", "mm.gate", "mm.up", "mm.down"),
        more=_glm_4,
    ),
    "idefics3": ProjectorKind(
        wholes={"llama": "Idefics3ForConditionalGeneration"},
        norm="",
        products=("mm.model.fc",),
        more=_idefics_3,
    ),
    "llama4": ProjectorKind(
        wholes={"llama4": "Llama4ForConditionalGeneration"},
        products=("mm.model.mlp.1", "mm.model.mlp.2", "mm.model.fc"),
        gelu="gelu",
        more=_llama_4,
    ),
    "qwen2vl_merger": ProjectorKind(
        wholes={"qwen2vl": "Qwen2VLForConditionalGeneration"}, gelu="quick_gelu", more=_qwen_2
    ),
    "qwen2.5vl_merger": ProjectorKind(
        wholes={"qwen2vl": "Qwen2_5_VLForConditionalGeneration"}, more=_qwen_2_5
    ),
    "qwen3vl_merger": ProjectorKind(
        wholes={
            "qwen3vl": "Qwen3VLForConditionalGeneration",
            "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
            "qwen35": "Qwen3_5ForConditionalGeneration",
            "qwen35moe": "Qwen3_5MoeForConditionalGeneration",
        },
        more=_qwen_3,
    ),
    "pixtral": ProjectorKind(
        wholes={
            "llama": "Mistral3ForConditionalGeneration",
            "mistral3": "Mistral3ForConditionalGeneration",
        },
        norm="mm.input_norm",
        products=("mm.patch_merger", "mm.1", "mm.2"),
        gelu="gelu",
        more=_pixtral,
    ),
    "lightonocr": ProjectorKind(
        wholes={"qwen3": "LightOnOcrForConditionalGeneration"},
        norm="mm.input_norm",
        products=("mm.patch_merger", "mm.1", "mm.2"),
        gelu="gelu",
        more=_pixtral,
    ),
    # Pixtral 12B, which names no other kind, but has nothing that makes one patch of a cell's.
    "pixtral-12b": ProjectorKind(
        wholes={"llama": "LlavaForConditionalGeneration"},
        norm="",
        products=("mm.1", "mm.2"),
        gelu="gelu",
        more=_pixtral_12b,
    ),
}
