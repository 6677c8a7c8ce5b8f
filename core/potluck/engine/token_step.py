"""Run one token through a whole stage in two or three generated calls, without any torch operator.

A stage waits most of the time. Meanwhile other stages on the computer evict its code from the
processor's caches, and the next call loads it from RAM: one operator of torch takes 50 to 200 µs, a
call through `ctypes` 10 µs. So all memory is allocated beforehand, and calls get addresses.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.generated.run import GeneratedRun
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.decoding.ends import EmbeddingLookup, Head
from potluck.engine.kernels.decoding.streams_kernel import StreamShape, has_stream_kernels
from potluck.engine.kernels.layout import GROUP, groups_of
from potluck.engine.layers.balanced_streams import BalancedEnd
from potluck.engine.layers.blocks import Run
from potluck.engine.layers.carried import FirstNorm
from potluck.engine.layers.linear import Linear, PackedEmbedding, PackedLinear
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.rotary import Rotary
from potluck.engine.layers.streams import FinalNorm
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.payload import Activations
from potluck.engine.rank_sums.ranks import Exchange
from potluck.model.config import ModelConfig


class TokenStep:
    """A stage whose layers are all in generated runs, with hidden states in f32."""

    def __init__(
        self,
        config: ModelConfig,
        runs: Sequence[GeneratedRun],
        embedding: EmbeddingLookup | None,
        head: Head | None,
    ) -> None:
        self._runs = tuple(runs)
        self._embedding, self._head = embedding, head
        self._table = next((run.table for run in runs if run.table is not None), None)
        carried, width = config.carried, config.width
        self._shape = (1, width)
        # Of the first embedding: all streams begin with it, or it goes along behind the hidden states that it is.
        size, count = config.hidden_size, 1
        if carried is not None:
            size, count = carried.embedding_size, 2
        elif config.streams is not None:
            count = config.streams.count
        self._copies = [slice(4 * size * n, 4 * size * (n + 1)) for n in range(count)]
        # Whole groups, since an embedding lookup writes these.
        self._memory = torch.zeros(groups_of(width) * GROUP)
        self._hidden = self._memory.data_ptr()
        self._bytes = self._memory.numpy().data.cast("B")[: 4 * width]

    def __call__(
        self,
        inputs: Activations,
        cache: SessionCache,
        position: int,
        rotaries: Sequence[Rotary],
        lag: int = 0,
        exchange: Exchange | None = None,
        token: int | None = None,
    ) -> None:
        """Run one token through embedding and layers: its id, or the hidden states of the stage before.

        Where these are given, `token` is the id, if layers look at it. The session's cache must have room. The token's keys and values are written. `rotaries` are those
        of the session, for each rope of the model, whose positions are less by the lag; `exchange` sums what
        ranks have computed.
        """
        if self._embedding is not None:
            token = inputs.number
            self._embedding(token, self._hidden)
            first, *others = self._copies
            for one in others:
                self._bytes[one] = self._bytes[first]
        else:
            self._read(inputs)
        angles = [rotary.addresses(position - lag) for rotary in rotaries]
        row = None if self._table is None or token is None else self._table.row(token)
        place = 0 if row is None else row.data_ptr()
        for run in self._runs:
            run.step(self._hidden, cache, position, angles, exchange, place, token or 0)

    @property
    def hidden(self) -> Activations:
        """The hidden states (1, D) after the last call, as a copy."""
        return Activations(torch.float32, self._shape, memoryview(bytearray(self._bytes)))

    def head(self) -> tuple[Tensor, int | None]:
        """Logits (V,) of the last call's token, and the index of the largest; of equal ones the first.

        The logits are overwritten by the next call. The index is None if a logit is not finite.
        """
        assert self._head is not None
        best = self._head(self._hidden)
        return self._head.logits, best

    def head_of(self, hidden: Tensor) -> tuple[Tensor, int | None]:
        """The same for given hidden states (1, D)."""
        self._read(Activations.of(hidden))
        return self.head()

    def _read(self, inputs: Activations) -> None:
        if inputs.dtype != torch.float32:
            inputs = Activations.of(inputs.tensor.float())
        self._bytes[:] = inputs.data


def make_token_step(weights: StageWeights) -> TokenStep | None:
    """Make the step of this stage; None if a token needs torch's operators."""
    runs = _generated(weights.runs)
    if runs is None or weights.dtype != torch.float32:
        return None
    if weights.follows is not None or weights.next_follows is not None:
        return None  # what is chosen comes and goes with hidden states
    kernels = runs[0].kernels if runs else _kernels(weights.lm_head)
    if kernels is None:
        return None
    embedding = None
    if weights.embedding is not None:
        has_norm = weights.config.embedding_norm_eps is not None
        if has_norm or not isinstance(weights.embedding, PackedEmbedding):
            return None
        multiplier = weights.config.embedding_multiplier
        embedding = EmbeddingLookup(kernels, weights.embedding.weight, multiplier)
    head = None if weights.lm_head is None else _head(kernels, weights.norm, weights.lm_head)
    if head is None and weights.lm_head is not None:
        return None
    return TokenStep(weights.config, runs, embedding, head)


def _generated(runs: Sequence[Run]) -> list[GeneratedRun] | None:
    generated = [run for run in runs if isinstance(run, GeneratedRun)]
    return generated if len(generated) == len(runs) else None


def _kernels(linear: Linear | None) -> GeneratedKernels | None:
    if not isinstance(linear, PackedLinear) or not isinstance(linear.kernels, GeneratedKernels):
        return None
    return linear.kernels


def _head(kernels: GeneratedKernels, norm: FinalNorm | None, lm_head: Linear) -> Head | None:
    streams = mix = None
    if isinstance(norm, BalancedEnd):
        if not has_stream_kernels(norm.streams):
            return None
        streams, mix, norm = StreamShape.of(norm.streams), norm.mix, norm.norm
    norm = norm.norm if isinstance(norm, FirstNorm) else norm
    if not isinstance(lm_head, PackedLinear) or not isinstance(norm, RmsNorm):
        return None
    return Head(
        kernels, norm.weight, norm.eps, lm_head.weight, norm.kind, lm_head.bias,
        streams, mix and mix.tensors,
    )  # fmt: skip
