"""What mixers with a recurrent state share in torch."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.layers.linear import Linear
from potluck.model.powers import exponential


class SmallTensors(Protocol):
    """What such a mixer has beside its matrices."""

    convolution: Tensor  # (inputs, channels); as files have it (channels, 1, inputs)

    @property
    def nbytes(self) -> int: ...


class Decaying(SmallTensors, Protocol):
    """What a mixer has whose state decays."""

    decays: Tensor  # (H,), below zero: what a decay's logarithm is per step; as files have it its logarithm


S = TypeVar("S")
T = TypeVar("T", bound=SmallTensors)


class RecurrentMixer(Generic[S, T]):
    """A mixer by a specification S, with small tensors T between two products."""

    __slots__ = ("_dtype", "input", "output", "spec", "tensors")

    def __init__(
        self,
        spec: S,
        input: Linear,  # noqa: A002 - as the specification calls it
        tensors: T,
        output: Linear,
        *,
        dtype: torch.dtype,
    ) -> None:
        """Make a mixer of hidden states of this dtype."""
        self.spec, self.input, self.tensors, self.output = spec, input, tensors, output
        self._dtype = dtype

    @property
    def matrices(self) -> Sequence[Linear]:
        return self.input, self.output

    @property
    def nbytes(self) -> int:
        return self.input.nbytes + self.tensors.nbytes + self.output.nbytes


def finish_convolution(tensors: SmallTensors) -> None:
    """Bring the convolution's weights into the form that is computed with."""
    tensors.convolution = tensors.convolution[:, 0].t().contiguous()


def finish_decays(tensors: Decaying) -> None:
    """Make decays of their logarithms, which files have."""
    decays = tensors.decays
    if decays.device.type == "cpu":  # not by torch: libraries round exp differently
        decays.copy_(torch.tensor([-exponential(one) for one in decays.tolist()]))
    else:
        decays.exp_().neg_()


def convolve(mixed: Tensor, before: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """The causal convolution of (T, channels), and SiLU; see `convolved`."""
    return F.silu(convolved(mixed, before, weights, bias), inplace=True)


def convolved(mixed: Tensor, before: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """The causal convolution of (T, channels).

    Args:
        mixed: the inputs.
        before: (inputs - 1, channels), those before; they become the last ones of all.
        weights: (inputs, channels).
        bias: (channels,); None: there is none.
    """
    everything, tokens = torch.cat([before, mixed]), len(mixed)
    before.copy_(everything[tokens:])
    first = everything[:tokens]
    out = first * weights[0] if bias is None else torch.addcmul(bias, first, weights[0])
    for index, weight in enumerate(weights[1:], 1):
        out.addcmul_(everything[index : index + tokens], weight)
    return out
