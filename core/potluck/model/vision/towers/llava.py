"""The towers of LLaVA 1.5 (https://arxiv.org/abs/2310.03744) and 1.6, which is LLaVA-NeXT: that of CLIP."""

from dataclasses import replace

from potluck.model.fields import Fields, invalid
from potluck.model.vision.spec import ClassToken, Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import MAX_SQUARE, MAX_TOWER, only, table, transformer

_MOST_SHAPES = 64
_MOST_TILES = 16  # beside the whole picture
_MOST_ROWS = 1 << 12  # of a picture and its tiles, which are read one after the other
_SHAPES = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))

CLIP = TowerFacts(
    patches="vision_tower.embeddings.patch_embedding",
    patch_bias=False,
    positions="vision_tower.embeddings.position_embedding.weight",
    token=ClassToken(name="vision_tower.embeddings.class_embedding"),
    layer="vision_tower.encoder.layers.{}.",
    norms=("layer_norm1", "layer_norm2"),
    norm_kind="layer",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    before="vision_tower.pre_layrnorm",
    merger=Merger(
        kind="mlp",
        products=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
    ),
)
LLAVA_NEXT = replace(CLIP, is_tiled=True, line_end="image_newline")


def read_clip(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of LLaVA 1.5: that of CLIP up to its last but one layer."""
    only(whole, "vision_feature_select_strategy", None, "default")
    sizes = transformer(eye)
    layer = whole.value("vision_feature_layer")
    last = whole.integer("vision_feature_layer", -MAX_TOWER, -1, -2) if layer is not None else -2
    sizes["layers"] += last + 1
    if sizes["layers"] < 1:
        raise invalid("vision_feature_layer", layer, "must be one of the tower's layers")
    side, patch = table(eye, patch=14)
    eps = eye.number("layer_norm_eps", 0.0, 1.0, 1e-5)
    has_bias = whole.flag("multimodal_projector_bias", True)
    return TowerSpec(
        facts=replace(facts, merger=replace(facts.merger, has_bias=has_bias)),
        **sizes,
        out=out,
        middle=(out,),
        patch=patch,
        merge=1,
        side=side,
        activation=eye.text("hidden_act", "quick_gelu"),
        merger_activation=whole.text("projector_hidden_act", "gelu"),
        norm_eps=eps,
    )


def read_llava_next(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of LLaVA-NeXT, which reads pictures in squares, in some shapes.

    Shapes of more rows than a laptop bears are left out.
    """
    tower = read_clip(whole, eye, facts, out)
    shapes = [_shape(whole, pair, tower.square) for pair in _pairs(whole)]
    most = min(_MOST_TILES, _MOST_ROWS // tower.rows_at_once - 1)
    few = tuple(shape for shape in shapes if shape[0] * shape[1] <= most)
    if not few:
        raise invalid(
            "image_grid_pinpoints", len(shapes), f"must have shapes of at most {most} squares"
        )
    return replace(tower, shapes=few)


def _pairs(whole: Fields) -> list[object]:
    """Heights and widths in pixels of the shapes."""
    return whole.entries("image_grid_pinpoints", _MOST_SHAPES) or [list(pair) for pair in _SHAPES]


def _shape(whole: Fields, pair: object, square: int) -> tuple[int, int]:
    """Lines of squares, and squares of each line."""
    path = whole.path("image_grid_pinpoints")
    sides = Fields({path: pair}).integers(path, square, MAX_SQUARE, 2)
    if len(sides) != 2 or any(side % square for side in sides):
        raise invalid(path, pair, f"must be heights and widths of whole squares of {square}")
    return sides[0] // square, sides[1] // square
