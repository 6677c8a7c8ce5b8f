"""Runs of layers as generated functions: which layers can be in one, and how it is called."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.pool_cache import PoolCache
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.state_cache import RowsAndState, StateCache
from potluck.engine.device import CacheForm
from potluck.engine.generated.layers import GeneratedLayer, generated_layer
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.decoding.decode import ChosenMemory, Decoder
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import DecoderLayer, LayerRun, Run
from potluck.engine.layers.carried import CarriedLayer, InputTable
from potluck.engine.layers.choosing import Choice
from potluck.engine.rank_sums.ranks import Exchange, GeneratedSum, NativeSum, SumCallback


class GeneratedRun(Run):
    """Consecutive layers of one shape."""

    def __init__(
        self,
        first: int,
        layers: Sequence[GeneratedLayer],
        kernels: GeneratedKernels,
        chosen: ChosenMemory | None = None,
        table: InputTable | None = None,
    ) -> None:
        """Make it.

        Args:
            first: the number of the first layer in the stage.
            layers: all of them.
            kernels: those that functions are generated with.
            chosen: where all runs of the stage have what was chosen for the token.
            table: that of layers' embeddings, if they have some.
        """
        self.table = table
        self.layers, self.kernels = slice(first, first + len(layers)), kernels
        shape, weights = layers[0][0], [weights for _, weights in layers]
        self._decoder = Decoder(kernels, weights, shape, chosen)
        self._chosen, self._sees = chosen, None
        if shape.latent is not None and shape.latent.pools is None:  # whose tokens no layer follows
            self._sees = shape.latent.sees
        pooled = shape.pooled
        self._rate, self._turned, self._rope = 0, shape.rotary_dim, weights[0].rope or 0
        if pooled is not None:
            self._rate = pooled.heads.rate
        self._sums: GeneratedSum | None = None
        self._joined: object = None  # what they were made of
        self._placed: object = None  # the `place` of the cache whose addresses the decoder has

    def step(
        self,
        hidden: int,
        cache: SessionCache,
        position: int,
        angles: Sequence[tuple[int, int, int]],
        exchange: Exchange | None = None,
        inputs: int = 0,
        token: int = 0,
    ) -> None:
        """Run one token through the layers without any torch operator.

        Args:
            hidden: the address of the hidden states, and what goes along, in f32; they are updated in place.
            cache: of all layers of the stage.
            position: of the token.
            angles: for each rope of the model, the addresses of the position's angles, f32.
            exchange: sums what ranks have computed.
            inputs: the address of the token's row of `table`.
            token: its id, if layers look at it.

        Raises:
            RankLostError: another rank did not take part in a sum.
        """
        self._join(exchange)
        if self._placed is not cache.place:
            own = cache.layers[self.layers]
            firsts, shared = [one.first for one in own], [one.shared for one in own]
            states = [_state(one) for one in own]
            self._decoder.place([_rows(one) for one in own], firsts, shared, states)
            self._placed = cache.place
        if position == 0:
            _begin(cache.layers[self.layers])
        pool = self._pool_angles(angles, position)
        self._decoder.step(hidden, position, angles, inputs, token, pool)
        if self._sums is not None:
            self._sums.check()

    def _pool_angles(
        self, angles: Sequence[tuple[int, int, int]], position: int
    ) -> tuple[int, int]:
        """The addresses of those of the first token of the pool that ends with a position, if one does.

        Angles of all positions are in a table, f32.
        """
        if not self._rate or (position + 1) % self._rate:
            return 0, 0
        back = (self._rate - 1) * self._turned * torch.float32.itemsize
        cosines, sines, _ = angles[self._rope]
        return cosines - back, sines - back

    def _join(self, exchange: Exchange | None) -> None:
        """Have the sums of the next step made by this exchange."""
        joined = None if exchange is None else exchange.native or exchange
        if joined is self._joined:
            return
        native: NativeSum | None = None if exchange is None else exchange.native
        sums: GeneratedSum | None = native
        if native is not None:
            native.wakes(self.kernels.wake)
        elif exchange is not None:
            sums = SumCallback(exchange, self.kernels.wake)
        self._joined, self._sums = joined, sums
        self._decoder.sum_by(*((0, 0) if sums is None else (sums.address, sums.argument)))

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        hidden = x.to(torch.float32, copy=True)  # the decoder updates it in place
        own, self._placed = caches[self.layers], None
        if step.position == 0:
            _begin(own)
        angles = [angles.float() for angles in step.angles]
        memory, firsts = [_rows(one) for one in own], [one.first for one in own]
        shared, states = [one.shared for one in own], [_state(one) for one in own]
        if self._chosen is not None and step.choice is not None:
            self._chosen.places[:-1].copy_(step.choice.places[0])
        self._join(step.exchange)
        row = None if self.table is None else self.table.rows((step,))
        token = 0 if step.ids is None else int(step.ids[0])
        pool = None
        if self._rate and (step.position + 1) % self._rate == 0:
            first = step.position + 1 - self._rate
            pool = step.rotaries[self._rope].angles(first, 1).float()
        place = firsts, shared, states
        self._decoder(hidden, memory, step.position, angles, *place, row, token, pool)
        if self._sums is not None:
            self._sums.check()
        if self._chosen is not None and self._sees is not None and step.position >= self._sees:
            places = self._chosen.places[None, :-1].clone()
            step.choice = Choice(self._sees, step.position, places=places)
        return hidden.to(x.dtype)


def _begin(caches: Sequence[LayerCache]) -> None:
    """Make states those before the first token."""
    for cache in caches:
        for part in cache.parts:
            if isinstance(part, StateCache):
                part.state(0)


def _rows(cache: LayerCache) -> Tensor:
    """The rows of tokens, or the state."""
    return cache.token_rows if isinstance(cache, PoolCache) else cache.both


def _state(cache: LayerCache) -> Tensor | None:
    """The state beside rows of tokens, or the rows of pools."""
    if isinstance(cache, PoolCache):
        return cache.pool_rows
    return cache.state.both if isinstance(cache, RowsAndState) else None


def input_table(blocks: Sequence[DecoderLayer]) -> InputTable | None:
    """The table of layers' embeddings; None: they have none."""
    inputs = (block.inputs for block in blocks if isinstance(block, CarriedLayer))
    return next((one.shared for one in inputs if one is not None), None)


def cut_into_runs(
    blocks: Sequence[DecoderLayer], kernels: GeneratedKernels, cache: CacheForm
) -> tuple[Run, ...]:
    """Cut a stage's layers into the longest runs that one call can compute for one token.

    Args:
        blocks: all layers of the stage.
        kernels: those that functions are generated with.
        cache: the form of keys and values.
    """
    layers = [generated_layer(block, cache) for block in blocks]
    runs: list[Run] = []
    latents = [layer[0].latent for layer in layers if layer is not None]
    chosen = ChosenMemory.of([latent for latent in latents if latent is not None])
    table, first = input_table(blocks), 0
    for _, group in groupby(layers, lambda layer: layer and layer[0]):
        some = list(group)
        generated = [layer for layer in some if layer is not None]
        if generated:
            runs.append(GeneratedRun(first, generated, kernels, chosen, table))
        else:
            runs.append(LayerRun(first, blocks[first : first + len(some)]))
        first += len(some)
    return tuple(runs)
