"""Make the parts of layers that read and write several residual streams."""

import torch
import torch.nn.functional as F  # noqa: N812

from potluck.engine.gates import Elementwise, gate
from potluck.engine.kernels.products.tensors import MixTensors
from potluck.engine.layers.balanced_streams import BalancedEnd, BalancedMix
from potluck.engine.layers.carried import FirstNorm
from potluck.engine.layers.ngrams import Ngrams
from potluck.engine.layers.row_table import RowTable, TableTarget
from potluck.engine.layers.streams import Around, FinalNorm, StreamMix, StreamNorm
from potluck.engine.loading.matrices import MatrixBuilder
from potluck.model.mixing.ngrams import NgramSpec
from potluck.model.mixing.streams import BalancedMixSpec, StreamMixSpec, Streams
from potluck.model.naming import FINAL_NORM


class StreamBuilder(MatrixBuilder):
    """Makes what stands around the blocks of a layer."""

    def final_norm(self) -> FinalNorm:
        """What makes the head's input of the last layer's output."""
        config = self._config
        if (mix := config.final_mix) is not None:
            return self._stream_mix("", mix, config.rms_norm_eps)
        is_whole = config.final_norm_is_whole
        norm = self.norm(FINAL_NORM, config.rms_norm_eps, kind=config.norm_kind, is_whole=is_whole)
        if (carried := config.carried) is not None:
            return FirstNorm(norm, carried.hidden_size)
        if (streams := config.streams) is None:
            return norm
        mix = config.final_balanced_mix
        return BalancedEnd(streams, None if mix is None else self._balanced_mix("", mix), norm)

    def _mix(self, prefix: str, spec: StreamMixSpec | BalancedMixSpec, eps: float) -> Around:
        """What makes a block's input of several streams."""
        if isinstance(spec, BalancedMixSpec):
            return self._balanced_mix(prefix, spec)
        return self._stream_mix(prefix, spec, eps)

    def _balanced_mix(self, prefix: str, spec: BalancedMixSpec) -> BalancedMix:
        balance, width = spec.streams.balance, spec.streams.width
        assert balance is not None
        matrix, base, scale = (
            self._filled(prefix + name, *shape) for name, shape in spec.tensors().items()
        )
        ones, generated = torch.ones(width, device=self._device), self.generated
        return BalancedMix(
            spec,
            self._norm_of(ones, balance.norm_eps),
            MixTensors(matrix, base, scale),
            product=F.linear if generated is None else generated.multiply_plain,
            apply=Elementwise(None if generated is None else generated.gate),
        )

    def _stream_mix(self, prefix: str, spec: StreamMixSpec, eps: float) -> StreamMix:
        streams, injection = spec.streams, None
        if spec.injection is not None:
            injection = torch.empty(streams.count, streams.width, device=self._device)
            for name, _ in spec.injection.tensors():
                self._filling.tensor(prefix + name, injection)
        generated = self.generated
        return StreamMix(
            spec,
            self._stream_norm(prefix + spec.norm, streams, eps),
            down=self._linear(prefix, spec.down),
            up=self._linear(prefix, spec.up),
            injection=injection,
            apply=gate if generated is None else generated.gate,
            product=F.linear if generated is None else generated.multiply_plain,
        )

    def _stream_norm(self, name: str, streams: Streams, eps: float) -> StreamNorm:
        weight = self._filling.tensor(name, self._norm_weight(streams.width))
        ones = torch.ones(streams.hidden_size, device=self._device)
        return StreamNorm(weight, self._norm_of(ones, eps))

    def _ngrams(self, prefix: str, spec: NgramSpec, eps: float) -> Ngrams:
        table, width = RowTable(spec), spec.streams.width
        for shard, (name, shape) in enumerate(spec.table()):
            self._filling.add(prefix + name, TableTarget(table, shard, *shape))
        convolution = torch.empty(width, 1, spec.inputs, device=self._device)
        return Ngrams(
            spec,
            table,
            key=self._linear(prefix, spec.key),
            value=self._linear(prefix, spec.value),
            norms=[self._stream_norm(prefix + name, spec.streams, eps) for name in spec.norms],
            convolution=self._filling.tensor(prefix + spec.convolution, convolution),
            apply=gate if self.generated is None else self.generated.gate,
        )
