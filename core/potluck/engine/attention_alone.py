"""The attention of one token alone, of layers whose decoding is generated, as calls to be measured."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from potluck.engine.blocks import DecoderLayer
from potluck.engine.decoding import Run
from potluck.engine.generated_run import GeneratedRun
from potluck.engine.kernels.attention_kernel import ATTEND_FIELDS, LANES, SUMS
from potluck.engine.kvcache import LayerCache


def generated_layers(runs: Sequence[Run]) -> dict[int, GeneratedRun]:
    """The layers of a stage that are in generated runs."""
    return {
        layer: run
        for run in runs
        if isinstance(run, GeneratedRun)
        for layer in range(run.layers.start, run.layers.stop)
    }


def attention_call(
    block: DecoderLayer, run: GeneratedRun, queries: Tensor, cache: LayerCache, position: int
) -> Callable[[], Tensor]:
    """A call that attends as a generated layer does, and returns (H·K,).

    Args:
        block: the layer.
        run: that it is in.
        queries: (H·K,), f32.
        cache: of the layer, with keys and values up to `position`.
        position: of the token that looks at them.
    """
    heads, kernels = run.heads, run.kernels
    window, memory = block.attention.window, cache.both
    start = 0 if window is None else max(0, position + 1 - window)
    length, row = position + 1 - start, start - cache.first
    stride = -(-length // LANES) * LANES
    scores = torch.empty((heads.heads, stride))
    sums, out = torch.empty((heads.heads, SUMS)), torch.empty_like(queries)
    arguments = {
        "queries": queries.data_ptr(),
        "keys": memory[0].data_ptr() + row * heads.cached_bytes,
        "values": memory[1].data_ptr() + row * heads.cached_bytes,
        "head_stride": memory.shape[2] * heads.cached_bytes,
        "length": length,
        "scores": scores.data_ptr(),
        "scores_stride": stride,
        "sums": sums.data_ptr(),
        "out": out.data_ptr(),
    }
    fields = torch.tensor([arguments[name] for name in ATTEND_FIELDS])

    def attend(*_: Tensor) -> Tensor:
        kernels.attend_one(heads, fields.data_ptr())
        return out

    # With what the fields point to, which has to live as long as the call.
    return partial(attend, queries, memory, scores, sums)
