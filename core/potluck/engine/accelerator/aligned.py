"""Causal attention of a chunk with tokens before it, by flash attention and so without a mask.

Flash attention lets the last query stand at the last token, and torch's `causal_lower_right` leads to
it. Its `is_causal` lets the first query stand at the first token instead, and with a mask it takes
another way, which for heads that share keys holds all scores at once; where a window does need one,
keys are expanded for that reason. Only GPUs of CUDA and ROCm have flash attention. On a CPU
`causal_lower_right` is spelt out as a mask, which is how this class is tested; on a GPU it has not run.

Imported only for a GPU: `torch.nn.attention.bias` brings torch's compiler along, which takes a second.
"""

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import CausalBias, causal_lower_right

from potluck.engine.attention import Attention, ExpandedAttention, Span, Step
from potluck.engine.kvcache import LayerCache


class AlignedAttention(ExpandedAttention):
    """Windows have masks, and expanded keys, as ever."""

    __slots__ = ()

    def _mask(self, step: Step, span: Span) -> Tensor | None:
        if span.is_causal and step.position > 0:
            return causal_lower_right(step.tokens, span.length)  # holds no numbers: 7 µs
        return super()._mask(step, span)

    def _attend_many(self, q: Tensor, cache: LayerCache, span: Span, mask: Tensor | None) -> Tensor:
        if mask is None or isinstance(mask, CausalBias):
            return Attention._attend_many(self, q, cache, span, mask)
        return super()._attend_many(q, cache, span, mask)


def has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch would use it on this device, for heads that share keys and fewer queries."""
    queries, keys = (
        torch.empty(shape, dtype=dtype, device=device) for shape in ((1, 4, 8, 64), (1, 2, 24, 64))
    )
    return can_use_flash_attention(SDPAParams(queries, keys, keys, None, 0.0, False, True))
