"""How large the largest tensor is that is made meanwhile: memory that nobody meant to take."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Notes the bytes of its storage."""

    nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **kwargs or {})
        if isinstance(made, Tensor):
            self.nbytes = max(self.nbytes, made.untyped_storage().nbytes())
        return made
