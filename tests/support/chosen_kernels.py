"""Which kernels compute the layers that a test loads."""

import pytest

from potluck.engine.device import CacheForm
from potluck.engine.kernels import Kernels, ReferenceKernels


def compute_with(patch: pytest.MonkeyPatch, kernels: Kernels | None = None) -> None:
    """What is loaded from now on is computed by these kernels; None: by torch, as on a GPU."""
    chosen = ReferenceKernels() if kernels is None else kernels
    patch.setattr("potluck.engine.loading.matrices.best_kernels", lambda **_: chosen)


def attend_unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have attention beside packed weights round nothing to bf16, as torch does not, in stages that are loaded from now on."""
    monkeypatch.setattr(CacheForm, "has_pairs", False)
