"""A matrix that is multiplied with: the seam of the schemes."""

from torch import Tensor

from potluck.engine.products import Products


class Linear:
    """x Wᵀ + b. A quantised matrix is called in the same way."""

    __slots__ = ("_products", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, products: Products) -> None:
        self.weight = weight  # (out, in)
        self.bias = bias
        self._products = products

    def __call__(self, x: Tensor) -> Tensor:
        return self._products(x, self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)
