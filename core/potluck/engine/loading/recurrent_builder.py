"""Make mixers with a recurrent state from their specifications."""

from potluck.engine.generated.singles import as_generated
from potluck.engine.layers.channel_delta import (
    ChannelDeltaNet,
    empty_channel_tensors,
    finish_channel_tensors,
)
from potluck.engine.layers.delta_net import DeltaNet, empty_tensors, finish_tensors
from potluck.engine.layers.mamba import Mamba
from potluck.engine.layers.mamba import empty_tensors as mamba_tensors
from potluck.engine.layers.mamba import finish_tensors as finish_mamba
from potluck.engine.layers.recurrent import finish_convolution
from potluck.engine.layers.short_convolution import ShortConvolution
from potluck.engine.layers.short_convolution import empty_tensors as convolution_tensors
from potluck.engine.loading.matrices import MatrixBuilder
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.short_convolution import ConvolutionSpec


class RecurrentBuilder(MatrixBuilder):
    """Makes the mixers."""

    def _delta_net(self, prefix: str, spec: DeltaNetSpec) -> DeltaNet:
        first = self._linear(prefix, spec.input)
        tensors, memory = empty_tensors(spec, self._device)
        for name, part in memory.items():
            self._filling.tensor(prefix + name, part)
        self._filling.then(lambda: finish_tensors(tensors, spec))
        output = self._linear(prefix, spec.output)
        if (kernels := as_generated(self.run_kernels)) is None:
            return DeltaNet(spec, first, tensors, output, dtype=self.dtype)
        from potluck.engine.generated.delta_net import GeneratedDeltaNet

        return GeneratedDeltaNet(spec, first, tensors, output, dtype=self.dtype, kernels=kernels)

    def _channel_delta(self, prefix: str, spec: ChannelDeltaSpec) -> ChannelDeltaNet:
        first, gates = self._linear(prefix, spec.input), self._linear(prefix, spec.gates)
        tensors, memory = empty_channel_tensors(spec, self._device)
        for name, part in memory.items():
            self._filling.tensor(prefix + name, part)
        self._filling.then(lambda: finish_channel_tensors(tensors, spec))
        output = self._linear(prefix, spec.output)
        if (kernels := as_generated(self.run_kernels)) is None:
            return ChannelDeltaNet(spec, first, gates, tensors, output, dtype=self.dtype)
        from potluck.engine.generated.channel_delta import GeneratedChannelDeltaNet

        return GeneratedChannelDeltaNet(
            spec, first, gates, tensors, output, dtype=self.dtype, kernels=kernels
        )

    def _mamba(self, prefix: str, spec: MambaSpec) -> Mamba:
        first = self._linear(prefix, spec.input)
        tensors, memory = mamba_tensors(spec, self._device)
        for name, part in memory.items():
            self._filling.tensor(prefix + name, part)
        self._filling.then(lambda: finish_mamba(tensors, spec))
        output = self._linear(prefix, spec.output)
        if (kernels := as_generated(self.run_kernels)) is None:
            return Mamba(spec, first, tensors, output, dtype=self.dtype)
        from potluck.engine.generated.mamba import GeneratedMamba

        return GeneratedMamba(spec, first, tensors, output, dtype=self.dtype, kernels=kernels)

    def _convolution(self, prefix: str, spec: ConvolutionSpec) -> ShortConvolution:
        first = self._linear(prefix, spec.input)
        tensors, memory = convolution_tensors(spec, self._device)
        for name, part in memory.items():
            self._filling.tensor(prefix + name, part)
        self._filling.then(lambda: finish_convolution(tensors))
        output = self._linear(prefix, spec.output)
        if (kernels := as_generated(self.run_kernels)) is None:
            return ShortConvolution(spec, first, tensors, output, dtype=self.dtype)
        from potluck.engine.generated.convolution import GeneratedConvolution

        return GeneratedConvolution(spec, first, tensors, output, dtype=self.dtype, kernels=kernels)
