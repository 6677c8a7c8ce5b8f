"""Decoding: one token passes a stage's layers in a single call, and all memory is made beforehand."""

import ctypes
from collections.abc import Sequence
from ctypes import addressof
from typing import Any, NamedTuple

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import (
    cache_fields,
    norm_parts,
    shared_fields,
)
from potluck.engine.kernels.called.convolution import convolution_fields
from potluck.engine.kernels.called.delta import delta_fields
from potluck.engine.kernels.called.generated import NO_WINDOW, GeneratedKernels
from potluck.engine.kernels.called.mamba import mamba_fields
from potluck.engine.kernels.called.pools import pooled_fields
from potluck.engine.kernels.called.recurrent import cached_fields
from potluck.engine.kernels.decoding import layer_records as records
from potluck.engine.kernels.decoding.decode_memory import empty_input, room_memory, step_memory
from potluck.engine.kernels.decoding.latent_layer import LatentShape
from potluck.engine.kernels.decoding.layer_kernel import emit_decode
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.layer_weights import LayerWeights, Moe, check_layer
from potluck.engine.kernels.products.tensors import Angles
from potluck.model.families.facts import gate_up_rows
from potluck.model.mixing.delta_net import DeltaHeads
from potluck.model.mixing.mamba import MambaHeads
from potluck.model.mixing.short_convolution import ConvolutionSizes

_ENDLESS = 1 << 62  # tokens that a state has seen


class ChosenMemory(NamedTuple):
    """The tokens that the last layer which chose some has chosen for a token."""

    places: Tensor  # (sees + 1,), i64: their positions; the last number is written to, but is none
    rows: Tensor  # bytes of their cached rows

    @classmethod
    def of(cls, shapes: Sequence[LatentShape]) -> "ChosenMemory | None":
        """Memory for layers of all these shapes; None: they see all tokens."""
        sizes = [
            (shape.sees, shape.sees * shape.heads.attention.cached_bytes)
            for shape in shapes
            if shape.sees is not None
        ]
        if not sizes:
            return None
        most, nbytes = map(max, zip(*sizes, strict=True))
        return cls(torch.zeros(most + 1, dtype=torch.int64), torch.empty(nbytes, dtype=torch.uint8))


class Decoder:
    """Some layers of one shape, and the memory that computing a token in them needs.

    One token at a time. It keeps the weights alive, and uses the caches that each call gives.
    """

    def __init__(
        self,
        kernels: GeneratedKernels,
        layers: Sequence[LayerWeights],
        shape: LayerShape,
        chosen: ChosenMemory | None = None,
    ) -> None:
        """Make it; `chosen` is for layers that see chosen tokens, whose decoders share it. None: it is made."""
        for layer in layers:
            check_layer(layer, shape)
        self._kernels, self._layers, self._shape = kernels, tuple(layers), shape
        self._decode = kernels.compiled(emit_decode, shape)
        space_size = 0 if shape.space is None else shape.space.heads.values_size
        few = 0 if shape.inputs is None else shape.inputs.size
        widest = max(
            shape.hidden, shape.attended, space_size, shape.widest, shape.expert_width, few
        )
        self._records = empty_input(widest)
        mlp_rows = gate_up_rows(shape.activation, shape.widest)
        space_rows = 0 if shape.space is None else shape.space.heads.rows
        self._wide = torch.empty(max(shape.mixed_rows, space_rows, mlp_rows, shape.hidden))
        self._attended = torch.empty(max(shape.attended, space_size))
        self._growing, self._room = dict[str, Tensor](), 0
        self._memory = step_memory(shape)
        if shape.latent is not None and shape.latent.sees is not None:
            chosen = chosen or ChosenMemory.of([shape.latent])
            assert chosen is not None
            assert len(chosen.places) > shape.latent.sees
            assert chosen.rows.nbytes >= shape.latent.sees * shape.attention.cached_bytes
            self._memory |= chosen._asdict()
        self._ropes = sorted({layer.rope for layer in layers if layer.rope is not None})
        self._angles = (records.Angles.structure * (2 + max(self._ropes, default=-1)))()
        self._step = self._make_step()
        self._experts = [_expert_records(layer.moe) for layer in layers if layer.moe]
        own = (self._make_layer(index) for index in range(len(layers)))
        self._own = (records.Layer.structure * len(layers))(*own)
        self._places: list[tuple[int, ...]] = [()] * len(layers)
        self._capacity = 0
        vocabulary = None if shape.routing is None else shape.routing.vocabulary
        self._ids = _ENDLESS if vocabulary is None else vocabulary
        if not isinstance(shape.mixer, Heads):
            self._capacity = _ENDLESS

    def __call__(
        self,
        hidden: Tensor,
        caches: Sequence[Tensor],
        position: int,
        angles: Sequence[Angles],
        firsts: Sequence[int] | None = None,
        shared: Sequence[Tensor | None] | None = None,
        states: Sequence[Tensor | None] | None = None,
        inputs: Tensor | None = None,
        token: int = 0,
        pool: Angles | None = None,
    ) -> None:
        """Run one token through the layers.

        Args:
            hidden: (1, width), f32; becomes what comes out of the last layer.
            caches: of each layer, (2, Hkv, rows, K), or K + 4 if int8; the token's keys and values are
                written. Of a delta net, (1, 1, rows, numbers): the first row is the state, which is changed.
            position: of the token; so many tokens are cached.
            angles: of the position, for each kind of rope, f32.
            firsts: as `place` takes them.
            shared: likewise.
            states: likewise.
            inputs: the token's row of the table of layers' embeddings, f32, if layers have some.
            token: its id, if layers look at it.
            pool: the angles of the first token of the pool that ends with the token, f32; None: none does.
        """
        assert inputs is None or (inputs.is_contiguous() and inputs.dtype == torch.float32)
        assert hidden.dtype == torch.float32
        assert hidden.is_contiguous()
        assert hidden.numel() == self._shape.width
        self.place(caches, firsts, shared, states)
        width = self._shape.rotary_dim
        addresses = [
            each.addresses(width) if rope in self._ropes else (0, 0, 0)
            for rope, each in enumerate(angles)
        ]
        row = 0 if inputs is None else inputs.data_ptr()
        early = (0, 0) if pool is None else pool.addresses(width)[:2]
        self.step(hidden.data_ptr(), position, addresses, row, token, early)

    def step(
        self,
        hidden: int,
        position: int,
        angles: Sequence[tuple[int, int, int]],
        inputs: int = 0,
        token: int = 0,
        pool: tuple[int, int] = (0, 0),
    ) -> None:
        """Run one token through the layers, with the caches that were placed last.

        What `__call__` does, but given addresses: of hidden states, of angles, of `inputs`, and of those of `pool`.
        """
        assert position < self._capacity, "no room in the cache"
        assert 0 <= token < self._ids
        self._step.token = token
        self._step.pool_cosines, self._step.pool_sines = pool
        for rope in self._ropes:
            here = self._angles[1 + rope]
            here.cosines, here.sines, here.query_factors = angles[rope]
        self._step.hidden, self._step.position, self._step.inputs = hidden, position, inputs
        if position >= self._room and isinstance(self._shape.mixer, Heads):
            self._make_room(self._shape.mixer, 2 * position + 1)
        self._kernels.wake()
        self._decode(addressof(self._step), addressof(self._own), len(self._layers))

    def sum_by(self, function: int, argument: int = 0) -> None:
        """Have the next steps call the function at this address (`SUM`) for sums over ranks; 0: none is called."""
        self._step.sum, self._step.sum_argument = function, argument

    def place(
        self,
        caches: Sequence[Tensor],
        firsts: Sequence[int] | None = None,
        shared: Sequence[Tensor | None] | None = None,
        states: Sequence[Tensor | None] | None = None,
    ) -> None:
        """Set the caches of the next steps; they move when a session grows or another session is stepped.

        Args:
            caches: of each layer.
            firsts: the position whose keys and values are in the first row of each. None: 0 in all.
            shared: of each the rows before, if they are needed, as `GeneratedKernels.attend` takes them.
            states: of each that of a state space beside attention, or the rows of pools.
        """
        firsts = [0] * len(caches) if firsts is None else firsts
        shared = [None] * len(caches) if shared is None else shared
        states = [None] * len(caches) if states is None else states
        assert len(caches) == len(firsts) == len(self._layers)
        given = zip(caches, firsts, shared, states, strict=True)
        for index, (cache, first, rows, state) in enumerate(given):
            more = (0 if one is None else one.data_ptr() for one in (rows, state))
            place = cache.data_ptr(), cache.shape[2], first, *more
            if self._places[index] != place:
                self._write_place(index, cache, first, rows, state)
                self._places[index] = place
        if isinstance(self._shape.mixer, Heads):
            self._capacity = min(first + rows for _, rows, first, *_ in self._places)

    def _make_room(self, heads: Heads, length: int) -> None:
        """Make memory for attention to so many cached tokens."""
        self._growing, self._room = room_memory(self._shape, heads, length), length
        for name, memory in self._growing.items():
            setattr(self._step, name, memory.data_ptr())

    def _make_step(self) -> ctypes.Structure:
        """Make the record of a step, with all that stays the same from token to token."""
        return records.Step.structure(
            angles=addressof(self._angles),
            records=self._records.data_ptr(),
            wide=self._wide.data_ptr(),
            attended=self._attended.data_ptr(),
            job=self._kernels.job,
            shares=self._kernels.shares,
            **{name: memory.data_ptr() for name, memory in self._memory.items()},
        )

    def _make_layer(self, index: int) -> ctypes.Structure:
        """Make the record of a layer, all but its cache."""
        layer, mixer = self._layers[index], self._shape.mixer
        tensors: dict[str, Tensor | None] = {
            "qkv": layer.qkv and layer.qkv.data,
            "qkv_bias": layer.qkv_bias,
            "output": layer.output and layer.output.data,
            "output_bias": layer.output_bias,
            "gate_up": None if layer.gate_up is None else layer.gate_up.data,
            "gate_up_bias": layer.gate_up_bias,
            "down": None if layer.down is None else layer.down.data,
            "down_bias": layer.down_bias,
            "learned": layer.learned,
            "sinks": layer.sinks,
            "scale": layer.scale,
            "before_attention": layer.norms.before_mixer,
            "after_attention": layer.norms.after_mixer,
            "before_mlp": layer.norms.before_mlp,
            "after_mlp": layer.norms.after_mlp,
            **_expert_tensors(layer.moe),
        }
        for one in (layer.latent, layer.pooled, layer.blocks):
            tensors |= {} if one is None else one.tensors
        if layer.inputs is not None:
            tensors |= layer.inputs.tensors
        for block, mix in zip(("mixer", "mlp"), layer.streams or (), strict=False):
            tensors |= {f"{block}_{name}": one for name, one in mix._asdict().items()}
        places = {}
        if isinstance(mixer, DeltaHeads):
            assert layer.delta_net is not None
            tensors["rates"] = layer.delta_net.rates
            tensors["decay_up"] = layer.decay_up
            tensors["gates"] = None if layer.gates is None else layer.gates.data
            places = delta_fields(mixer, layer.delta_net)
        elif isinstance(mixer, MambaHeads):
            assert layer.mamba is not None
            places = mamba_fields(mixer, layer.mamba)
        elif isinstance(mixer, ConvolutionSizes):
            assert layer.convolution is not None
            places = convolution_fields(mixer, layer.convolution)
        elif mixer is not None and layer.qk_norm is not None:
            tensors |= norm_parts(mixer, layer.qk_norm)
        if (space := layer.space) is not None:
            tensors |= {"space_input": space.input.data, "space_output": space.output.data}
            places = mamba_fields(space.heads, space.tensors)
        return records.Layer.structure(
            window=NO_WINDOW if layer.window is None else layer.window,
            chunk=NO_WINDOW if layer.chunk is None else layer.chunk,
            rope=0 if layer.rope is None else 1 + layer.rope,
            experts=addressof(self._experts[index]) if self._experts else 0,
            gives_at=layer.gives_at,
            takes_at=layer.takes_at,
            input_first=0 if layer.inputs is None else layer.inputs.first,
            **places,
            **{name: one.data_ptr() for name, one in tensors.items() if one is not None},
        )

    def _write_place(
        self, index: int, cache: Tensor, first: int, shared: Tensor | None, state: Tensor | None
    ) -> None:
        own, mixer = self._own[index], self._shape.mixer
        if mixer is None:
            return
        if self._shape.pooled is not None:
            assert state is not None
            fields = pooled_fields(self._shape.pooled.heads, cache, first, state)
        elif not isinstance(mixer, Heads):
            fields = cached_fields(mixer, cache)
        else:
            fields = cache_fields(mixer, cache, first) | shared_fields(mixer, shared)
        if self._shape.space is not None:
            assert state is not None
            fields |= cached_fields(self._shape.space.heads, state)
        for name, value in fields.items():
            setattr(own, name, value)


def _expert_tensors(moe: Moe | None) -> dict[str, Tensor | None]:
    """What a layer with experts has, by the name of its field."""
    if moe is None:
        return {}
    router = moe.router
    tensors: dict[str, Tensor | None] = {
        "router": router.matrix,
        "router_bias": router.addend,
        "choice_bias": router.bias,
        "id_table": router.id_table,
        "expert_scales": router.scales,
    }
    if moe.narrow is not None:
        tensors |= {"narrow_first": moe.narrow[0].data, "narrow_last": moe.narrow[1].data}
    if (beside := moe.beside) is not None:
        norms = beside.norms
        tensors |= {
            "before_mlp": norms.before_dense,
            "after_dense": norms.after_dense,
            "router_norm": beside.router_norm,
            "before_moe": norms.before_moe,
            "after_moe": norms.after_moe,
        }
    return tensors


def _expert_records(moe: Moe) -> ctypes.Array[Any]:
    """Make the records that say where the matrices of all experts are, in the order of `Layer.experts`."""
    more = (moe.shared, None if moe.beside is None else moe.beside.mlp)
    experts = (*moe.experts, *(one for one in more if one is not None))
    made = (
        records.Expert.structure(
            gate_up=one.gate_up.data.data_ptr(),
            gate_up_bias=0 if one.gate_up_bias is None else one.gate_up_bias.data_ptr(),
            down=one.down.data.data_ptr(),
            down_bias=0 if one.down_bias is None else one.down_bias.data_ptr(),
        )
        for one in experts
    )
    return (records.Expert.structure * len(experts))(*made)
