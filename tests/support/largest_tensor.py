"""Find the largest tensor that is made in a block: it reveals memory that was taken by mistake."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Records the bytes of the largest storage."""

    nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **kwargs or {})
        if isinstance(made, Tensor):
            self.nbytes = max(self.nbytes, made.untyped_storage().nbytes())
        return made
