"""Files that hold the matrices of all experts of a layer in one tensor, cut into experts.

    …experts.gate_up_proj            (experts, in, out), or (experts, out, in) in other families, which
                                     have all gates of an expert before all ups: these become two matrices
    …experts.gate_up_proj_bias       (experts, out)
    …experts.gate_up_proj_blocks     (experts, out, groups, 16), bytes of MXFP4
    …experts.gate_up_proj_scales     (experts, out, groups), bytes
    …switch_mlp.gate_proj.weight     (experts, out, in), and .scales and .biases: MLX, in all families

An expert's part is a range of bytes. Its names end in `.weight` or `.weight_t` (in, out), `.bias`, `.blocks` and
`.scales`. So a stage reads, and is sent, only experts of its own layers, one matrix at a time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.model.config import ModelConfig
from potluck.model.layers import Experts
from potluck.model.mixing.carried import OF_ALL_LAYERS
from potluck.model.names import BASE
from potluck.model.quantized import TRANSPOSED, WEIGHT, Shape

_STACK = re.compile(
    r"(?P<layer>model\.layers\.(?P<number>\d{1,4})(\.(?P<block>\w+))?)\.experts"
    r"\.(?P<matrix>\w+?)(?P<part>_bias|_blocks|_scales)?"
)


_MLX_STACK = re.compile(
    r"(?P<layer>model\.layers\.(?P<number>\d{1,4})\.(?P<block>\w+))\.switch_mlp"
    r"\.(?P<matrix>gate_proj|up_proj|down_proj)\.(?P<part>weight|scales|biases|global_scale)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One expert's part of a tensor."""

    name: str
    shape: Shape
    offset: int  # bytes from the tensor's first
    nbytes: int


def stack_slices(config: ModelConfig, name: str, shape: Shape, nbytes: int) -> list[Slice]:
    """Each expert's part of a tensor, or each layer's; none if the model has no such stack.

    Args:
        config: of the model.
        name: of the tensor, as `decoder_names` gives it.
        shape: of the tensor.
        nbytes: of the tensor.
    """
    if name.startswith(OF_ALL_LAYERS) and config.layers[0].inputs is not None:
        return _layer_rows(config, name.removeprefix(BASE), shape, nbytes)
    experts = config.experts
    if experts is None:
        return []
    if (found := _MLX_STACK.fullmatch(name)) is not None:
        return _mlx_slices(config, experts, found, shape, nbytes)
    for theirs, ours in experts.facts.stack_names.items():
        if name.endswith(theirs):
            name = name.removesuffix(theirs) + ours
    if (found := _STACK.fullmatch(name)) is None or experts.facts.stacked is None:
        return []
    facts, count = experts.facts, experts.routing.count
    matrices = {facts.fused or facts.gate, facts.up, facts.down, facts.stacked_gates}
    is_one = (found["block"] or "") == facts.block and found["matrix"] in matrices
    if not is_one or int(found["number"]) >= config.num_layers or shape[:1] != (count,):
        return []
    plain = TRANSPOSED if _is_turned(config, experts, found["matrix"], shape) else WEIGHT
    suffix = plain if found["part"] is None else found["part"].replace("_", ".")
    is_cut = found["matrix"] == facts.stacked_gates
    parts = (facts.gate, facts.up) if is_cut else (found["matrix"],)
    return _cut(found["layer"], [part + suffix for part in parts], shape, nbytes)


def _layer_rows(config: ModelConfig, name: str, shape: Shape, nbytes: int) -> list[Slice]:
    """Each layer's rows of a matrix of all layers."""
    count = config.num_layers
    if shape[:1] == () or shape[0] % count:
        return []
    rows, each = shape[0] // count, nbytes // count
    return [
        Slice(
            name=config.layer_prefix(layer) + name,
            shape=(rows, *shape[1:]),
            offset=layer * each,
            nbytes=each,
        )
        for layer in range(count)
    ]


def _is_turned(config: ModelConfig, experts: Experts, matrix: str, shape: Shape) -> bool:
    """Whether an expert's matrix is stored as (in, out)."""
    if experts.facts.stacked != "either":
        return experts.facts.stacked == "columns"
    is_last = matrix == experts.facts.down
    width = experts.intermediate_size if is_last else config.hidden_size
    return len(shape) > 1 and shape[1] == width  # of a square one, as published


def _mlx_slices(
    config: ModelConfig, experts: Experts, found: re.Match[str], shape: Shape, nbytes: int
) -> list[Slice]:
    facts = experts.facts
    if (
        found["block"] != facts.block
        or int(found["number"]) >= config.num_layers
        or shape[:1] != (experts.routing.count,)
    ):
        return []
    ours = {"gate_proj": facts.gate, "up_proj": facts.up, "down_proj": facts.down}
    return _cut(found["layer"], [f"{ours[found['matrix']]}.{found['part']}"], shape, nbytes)


def _cut(layer: str, names: Sequence[str], shape: Shape, nbytes: int) -> list[Slice]:
    """Each expert's matrices, whose rows stand one after the other in the tensor.

    Args:
        layer: begins their names.
        names: end them.
        shape: of the tensor.
        nbytes: of the tensor.
    """
    count, parts = shape[0], len(names)
    if len(shape) < 2 or shape[1] % parts:
        return []
    each = nbytes // (count * parts)
    return [
        Slice(
            name=f"{layer}.experts.{index}.{name}",
            shape=(shape[1] // parts, *shape[2:]),
            offset=(index * parts + number) * each,
            nbytes=each,
        )
        for index in range(count)
        for number, name in enumerate(names)
    ]
