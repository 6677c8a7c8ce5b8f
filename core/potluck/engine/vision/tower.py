"""A vision tower in torch: it runs once for each picture, so nothing is generated for it.

It computes in f32, whatever its weights are held in. Patches are in the order of their cells, cell by cell from the
upper left, so that those of a cell stand together. Checked against `transformers` (`models/*/modeling_*.py`).
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.vision.places import cell_order, patch_angles, window_order
from potluck.model.vision.spec import Merger, TowerSpec

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
_AT_ONCE = 2048  # patches in an MLP, which bounds its memory


class Tower:
    """The tower of one model, with its weights."""

    def __init__(
        self, spec: TowerSpec, tensors: Mapping[str, Tensor], device: torch.device
    ) -> None:
        """`tensors` are all that the specification names, on the device."""
        self.spec = spec
        self._tensors, self._device = dict(tensors), device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        """Rows of a picture: (H, W, 3), f32, normalised → (cells, out · (1 + deep layers)), f32, on the CPU.

        Height and width are multiples of a cell.
        """
        spec, facts = self.spec, self.spec.facts
        grid = pixels.shape[0] // spec.patch, pixels.shape[1] // spec.patch
        x = self._embed(pixels.to(self._device), grid)
        if facts.before is not None:
            x = self._norm(facts.before, x, spec.norm_eps)
        angles = patch_angles(spec, grid, self._device)
        order, windows = window_order(spec, grid)
        order = order.to(self._device)
        if windows:
            x = x[order]
            angles = None if angles is None else (angles[0][order], angles[1][order])
        deep: list[Tensor] = []
        for layer in range(spec.layers):
            parts = windows if windows and layer not in spec.whole_layers else [len(x)]
            x = self._layer(facts.layer.format(layer), x, angles, parts)
            if layer in spec.deep_layers and facts.deep is not None:
                number = str(spec.deep_layers.index(layer))
                deep.append(self._merge(facts.deep, number, x))
        if facts.after is not None:
            x = self._norm(facts.after, x, spec.norm_eps)
        rows = torch.cat([self._merge(facts.merger, "", x), *deep], 1)
        if windows:
            rows = rows[torch.argsort(order[:: spec.cell] // spec.cell)]
        return rows.cpu()

    def _embed(self, pixels: Tensor, grid: tuple[int, int]) -> Tensor:
        """(H, W, 3) → patches (N, width), with their positions."""
        spec, facts = self.spec, self.spec.facts
        rows, columns = grid
        patches = pixels.view(rows, spec.patch, columns, spec.patch, 3).permute(0, 2, 4, 1, 3)
        patches = patches.reshape(rows * columns, 3, 1, -1)[cell_order(grid, spec.merge)]
        patches = patches.expand(-1, -1, facts.frames, -1).reshape(rows * columns, -1)
        x = F.linear(patches, self._patch_matrix(), self._bias(facts.patches))
        if facts.positions is None:
            return x
        table = self._tensors[facts.positions].float()
        if facts.is_stretched:
            square = table.view(1, spec.side, spec.side, -1).permute(0, 3, 1, 2)
            stretched = F.interpolate(square, size=grid, mode="bilinear", align_corners=True)
            table = stretched[0].flatten(1).t()
        return x + table[cell_order(grid, spec.merge).to(self._device)]

    def _patch_matrix(self) -> Tensor:
        """The matrix that patches are multiplied with: (width, numbers of a patch)."""
        matrices = [self._tensors[name].float() for name in self.spec.facts.patch_matrices]
        whole = matrices[0] if len(matrices) == 1 else torch.stack(matrices, 2)
        return whole.flatten(1)

    def _layer(
        self, prefix: str, x: Tensor, angles: tuple[Tensor, Tensor] | None, parts: list[int]
    ) -> Tensor:
        spec, facts = self.spec, self.spec.facts
        before_attention, before_mlp = facts.norms
        normed = self._norm(prefix + before_attention, x, spec.norm_eps)
        x = x + self._attend(prefix, normed, angles, parts)
        normed = self._norm(prefix + before_mlp, x, spec.norm_eps)
        return x + torch.cat([self._mlp(prefix, some) for some in normed.split(_AT_ONCE)])

    def _attend(
        self, prefix: str, x: Tensor, angles: tuple[Tensor, Tensor] | None, parts: list[int]
    ) -> Tensor:
        """Attention of patches to all of their part of the picture."""
        heads = self.spec.heads
        joined = torch.cat([self._product(prefix + name, x) for name in self.spec.facts.qkv], 1)
        q, k, v = joined.view(len(x), 3, heads, -1).permute(1, 2, 0, 3)  # (H, N, K) each
        if angles is not None:
            if self.spec.facts.has_pairs:
                q, k = _halves(q), _halves(k)
            q, k = _rotate(q, *angles), _rotate(k, *angles)
        split = (each[None].split(parts, 2) for each in (q, k, v))
        seen = [F.scaled_dot_product_attention(q, k, v)[0] for q, k, v in zip(*split, strict=True)]
        mixed = torch.cat(seen, 1).transpose(0, 1).reshape(len(x), -1)
        return self._product(prefix + self.spec.facts.output, mixed)

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        *first, last = (prefix + name for name in self.spec.facts.mlp)
        activated = _ACTIVATIONS[self.spec.activation](self._product(first[0], x))
        if len(first) > 1:
            activated *= self._product(first[1], x)
        return self._product(last, activated)

    def _merge(self, merger: Merger, number: str, x: Tensor) -> Tensor:
        """Patches (N, width) → a row (out,) for each cell."""
        spec, norm = self.spec, merger.norm.format(number)
        names = [name.format(number) for name in merger.products]
        if merger.kind == "mean":
            means = x.view(-1, spec.cell, spec.width).mean(1)
            weight = self._tensors[f"{norm}.weight"].float()
            weight = weight if merger.has_whole_norm else 1.0 + weight
            normed = F.rms_norm(means, (spec.width,), weight, spec.merger_eps)
            return normed @ self._tensors[names[0]].float()
        if merger.norms_cell:
            x = self._norm(norm, x.view(-1, spec.cell * spec.width), spec.merger_eps)
        else:
            x = self._norm(norm, x, spec.merger_eps).view(-1, spec.cell, spec.width)
            if merger.kind == "joined":  # stored with all patches of one channel side by side
                x = self._product(names.pop(0), x.transpose(1, 2).flatten(1))
        hidden = self._product(names[0], x.flatten(1))
        return self._product(names[1], _ACTIVATIONS[spec.merger_activation](hidden))

    def _norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        weight, size = self._tensors[f"{name}.weight"].float(), (x.shape[-1],)
        if self.spec.facts.norm_kind == "rms":
            return F.rms_norm(x, size, weight, eps)
        return F.layer_norm(x, size, weight, self._tensors[f"{name}.bias"].float(), eps)

    def _product(self, name: str, x: Tensor) -> Tensor:
        weight = self._tensors[f"{name}.weight"].float().flatten(1)
        return F.linear(x, weight, self._bias(name))

    def _bias(self, name: str) -> Tensor | None:
        bias = self._tensors.get(f"{name}.bias")
        return None if bias is None else bias.float()


def _halves(x: Tensor) -> Tensor:
    """(…, K) with pairs side by side → first the first of each, then the second."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rope of (H, N, K): halves (a, b) of each head become (a·cos - b·sin, b·cos + a·sin)."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin
