"""The tower of Idefics 3 (https://arxiv.org/abs/2408.12637) and SmolVLM (https://arxiv.org/abs/2504.05299): SigLIP's."""

from potluck.model.fields import Fields
from potluck.model.vision.spec import Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import MAX_MERGE, table, transformer

IDEFICS_3 = TowerFacts(
    patches="vision_model.embeddings.patch_embedding",
    positions="vision_model.embeddings.position_embedding.weight",
    is_tiled=True,
    layer="vision_model.encoder.layers.{}.",
    norms=("layer_norm1", "layer_norm2"),
    norm_kind="layer",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    after="vision_model.post_layernorm",
    merger=Merger(kind="mlp", products=("connector.modality_projection.proj",), has_bias=False),
)
_USUAL: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
}


def read_idefics_3(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Idefics 3 and SmolVLM."""
    merge = whole.integer("scale_factor", 1, MAX_MERGE, 2)
    side, patch = table(eye, merge, patch=32, size=224)
    return TowerSpec(
        facts=facts,
        **transformer(eye.over(_USUAL)),
        out=out,
        middle=(),
        patch=patch,
        merge=merge,
        side=side,
        activation=eye.text("hidden_act", "gelu_pytorch_tanh"),
        norm_eps=eye.number("layer_norm_eps", 0.0, 1.0, 1e-6),
    )
