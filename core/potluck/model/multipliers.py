"""Numbers that activations of a layer are multiplied by, which become factors of its matrices' rows (Falcon-H1).

    q, k, v = in · (Wq x, key · Wk x, Wv x)      out · Wo (…)
    z, x, B, C, steps = in · factors · W x       out · W (…)
    down · Wd (silu(gate · Wg x) · Wu x)

So a matrix is multiplied once, when it is loaded, as llama.cpp's converter does.
"""

from collections.abc import Mapping

from potluck.model.common_fields import read_multiplier
from potluck.model.fields import Fields
from potluck.model.layers import DenseSpec, RowScales
from potluck.model.limits import MAX_MULTIPLIER, MIN_MULTIPLIER
from potluck.model.mixing.mixers import BesideSpec


def read_row_scales(fields: Fields, mixer: BesideSpec, mlp: DenseSpec) -> RowScales:
    """The factors of a layer's matrices that are not 1."""
    attention, mamba = mixer.attention, mixer.mamba
    first = read_multiplier(fields, "attention_in_multiplier")
    key = first * read_multiplier(fields, "key_multiplier")
    inside = read_multiplier(fields, "ssm_in_multiplier")
    zones = _numbers(fields, "ssm_multipliers", 5)
    gate, last = _numbers(fields, "mlp_multipliers", 2)
    queries, keys, values = attention.qkv.parts
    sizes = (*[mamba.values_size] * 2, *[mamba.shared_size] * 2, mamba.heads)
    hidden = attention.hidden_size
    found: Mapping[str, tuple[tuple[int, float], ...]] = {
        queries: ((attention.q_size, first),),
        keys: ((attention.kv_size, key),),
        values: ((attention.kv_size, first),),
        attention.output.parts[0]: ((hidden, read_multiplier(fields, "attention_out_multiplier")),),
        mamba.input.parts[0]: tuple(
            (size, inside * zone) for size, zone in zip(sizes, zones, strict=True)
        ),
        mamba.output.parts[0]: ((hidden, read_multiplier(fields, "ssm_out_multiplier")),),
        mlp.gate_up.parts[0]: ((mlp.down.width, gate),),
        mlp.down.parts[0]: ((hidden, last),),
    }
    return tuple(
        (f"{name}.weight", runs)
        for name, runs in found.items()
        if any(factor != 1.0 for _, factor in runs)
    )


def _numbers(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    if name not in fields:
        return (1.0,) * count
    return fields.numbers(name, MIN_MULTIPLIER, MAX_MULTIPLIER, count)
