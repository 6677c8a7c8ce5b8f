"""A vision tower in torch: it runs once for each picture, so nothing is generated for it.

It computes in f32, whatever its weights are held in. Patches are in the order of their cells, cell by cell from the
upper left, so that those of a cell stand together. Checked against `transformers` (`models/*/modeling_*.py`).
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.vision.places import cell_order, patch_angles, window_order
from potluck.model.vision.spec import Merger, NormKind, TowerSpec, bounds_of

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}
_AT_ONCE = 2048  # patches in an MLP, which bounds its memory
_Angles = tuple[Tensor, Tensor] | None


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

        Where lines have an end, its row comes last.

        Height and width are multiples of a cell, or of the square that the tower takes.
        """
        facts = self.spec.facts
        if not facts.is_tiled:
            return self._read(pixels)
        rows = [self._read(square) for square in pixels.split(self.spec.square)]
        if facts.line_end is not None:
            rows.append(self._tensors[facts.line_end].float().cpu()[None])
        return torch.cat(rows)

    def _read(self, pixels: Tensor) -> Tensor:
        """Rows of a picture, or of one square of it."""
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
        if facts.token is not None:
            x = x[:-1]
        rows = torch.cat([self._merge(facts.merger, "", x), *deep], 1)
        if windows:
            rows = rows[torch.argsort(order[:: spec.cell] // spec.cell)]
        return rows.cpu()

    def _embed(self, pixels: Tensor, grid: tuple[int, int]) -> Tensor:
        """(H, W, 3) → patches (N, width), with their positions, and the class token as the last one."""
        spec, facts = self.spec, self.spec.facts
        rows, columns = grid
        order = cell_order(grid, spec.merge)
        patches = pixels.view(rows, spec.patch, columns, spec.patch, 3).transpose(1, 2)
        if facts.patch_form != "pixels":
            patches = patches.permute(0, 1, 4, 2, 3)
        patches = patches.reshape(rows * columns, 3, 1, -1)[order]
        patches = patches.expand(-1, -1, facts.frames, -1).reshape(rows * columns, -1)
        if facts.is_centred:
            patches = 2 * (patches - 0.5)
        if facts.patch_norms is not None and facts.patch_norms[0]:
            patches = self._norm(facts.patch_norms[0], patches, spec.norm_eps)
        x = F.linear(patches, self._patch_matrix(), self._bias(facts.patches))
        if facts.patch_norms is not None:
            x = self._norm(facts.patch_norms[1], x, spec.norm_eps)
        if facts.token is not None:
            x = torch.cat([x, self._tensors[facts.token.name].float().view(1, -1)])
        return x if facts.positions is None else x + self._positions(grid, order)

    def _positions(self, grid: tuple[int, int], order: Tensor) -> Tensor:
        """What is added to patches in this order, and to the class token behind them."""
        spec, facts = self.spec, self.spec.facts
        assert facts.positions is not None
        table, order = self._tensors[facts.positions].float(), order.to(self._device)
        if facts.has_axes is not None:
            by_column, by_row = table.unbind(facts.has_axes)
            return by_column[order % grid[1]] + by_row[order // grid[1]]
        if facts.is_stretched:
            square = table.view(1, spec.side, spec.side, -1).permute(0, 3, 1, 2)
            mode = "bicubic" if facts.is_smooth else "bilinear"
            corners = not facts.is_smooth
            stretched = F.interpolate(square, size=grid, mode=mode, align_corners=corners)
            table = stretched[0].flatten(1).t()
        if facts.token is None:
            return table[order]
        table = table.view(-1, spec.width)
        if facts.token.is_last:
            return torch.cat([table[:-1][order], table[-1:]])
        return torch.cat([table[1:][order], table[:1]])

    def _patch_matrix(self) -> Tensor:
        """The matrix that patches are multiplied with: (width, numbers of a patch)."""
        matrices = [self._tensors[name].float() for name in self.spec.facts.patch_matrices]
        whole = matrices[0] if len(matrices) == 1 else torch.stack(matrices, 2)
        return whole.flatten(1)

    def _layer(self, prefix: str, x: Tensor, angles: _Angles, parts: list[int]) -> Tensor:
        spec, facts = self.spec, self.spec.facts
        before_attention, before_mlp = facts.norms
        normed = self._norm(prefix + before_attention, x, spec.norm_eps)
        x = x + self._given(prefix, 0, self._attend(prefix, normed, angles, parts))
        normed = self._norm(prefix + before_mlp, x, spec.norm_eps)
        mixed = torch.cat([self._mlp(prefix, some) for some in normed.split(_AT_ONCE)])
        return x + self._given(prefix, 1, mixed)

    def _given(self, prefix: str, half: int, x: Tensor) -> Tensor:
        """What attention (0) or MLP (1) adds to the patches."""
        facts = self.spec.facts
        if facts.norms_after is not None:
            x = self._norm(prefix + facts.norms_after[half], x, self.spec.norm_eps)
        return x if facts.scales is None else x * self._tensors[prefix + facts.scales[half]].float()

    def _attend(self, prefix: str, x: Tensor, angles: _Angles, parts: list[int]) -> Tensor:
        """Attention of patches to all of their part of the picture."""
        facts, heads = self.spec.facts, self.spec.heads
        joined = torch.cat([self._product(prefix + name, x) for name in facts.qkv], 1)
        qkv = joined.view(len(x), 3, heads, -1)
        if facts.qk_norms is not None:
            self._norm_queries(prefix, qkv)
        q, k, v = qkv.permute(1, 2, 0, 3)  # (H, N, K) each
        if angles is not None:
            q, k = (_rotate(_across(each, facts.pairs), *angles) for each in (q, k))
        split = (each[None].split(parts, 2) for each in (q, k, v))
        scale = None if facts.is_scaled else 1.0
        seen = [
            F.scaled_dot_product_attention(q, k, v, scale=scale)[0]
            for q, k, v in zip(*split, strict=True)
        ]
        mixed = torch.cat(seen, 1).transpose(0, 1).reshape(len(x), -1)
        return self._product(prefix + facts.output, mixed)

    def _norm_queries(self, prefix: str, qkv: Tensor) -> None:
        """Norm queries and keys (N, 3, H, K), and values if each head is normed, in place."""
        facts, eps = self.spec.facts, self.spec.norm_eps
        for place, name in enumerate(facts.qk_norms or ()):
            part, weight = qkv[:, place], self._tensors[f"{prefix}{name}.weight"].float()
            rows = part if facts.norms_heads else part.flatten(1)
            part.copy_(F.rms_norm(rows, rows.shape[-1:], weight, eps).view_as(part))
        if facts.norms_heads:
            values = qkv[:, 2]
            values.copy_(F.rms_norm(values, values.shape[-1:], None, eps))

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        *first, last = (prefix + name for name in self.spec.facts.mlp)
        activated = _ACTIVATIONS[self.spec.activation](self._product(first[0], x))
        if len(first) > 1:
            activated *= self._product(first[1], x)
        return self._product(last, activated)

    def _merge(self, merger: Merger, number: str, x: Tensor) -> Tensor:
        """Patches (N, width) → a row (out,) for each cell."""
        if merger.kind == "gated":
            return self._merge_gated(merger, x)
        spec, norm = self.spec, merger.norm.format(number)
        kind = merger.norm_kind or (spec.facts.norm_kind if norm else None)
        names = [name.format(number) for name in merger.products]
        if merger.kind == "mean":
            x = x.view(-1, spec.cell, spec.width).mean(1)
        if merger.is_scaled:
            x = x * math.sqrt(spec.width)
        if merger.standard is not None:
            less, times = (self._tensors[name].float() for name in merger.standard)
            x = (x - less) * times
        if merger.norms_cell:
            x = x.view(-1, spec.cell * spec.width)
        if kind is not None:
            x = self._norm(norm, x, spec.merger_eps, kind)
        if merger.kind == "joined":
            x = self._joined(names.pop(0), x)
        elif merger.kind == "mlp":
            x = x.view(-1, spec.cell * spec.width)
        for name in names[:-1]:
            x = _ACTIVATIONS[spec.merger_activation](self._product(name, x))
        if merger.is_turned:
            return x @ self._tensors[names[-1]].float()
        return self._product(names[-1], x)

    def _merge_gated(self, merger: Merger, x: Tensor) -> Tensor:
        spec = self.spec
        whole, second, gate, up, last = merger.products
        x = self._product(second, self._joined(whole, x))
        x = F.gelu(self._norm(merger.norm, x, spec.merger_eps, merger.norm_kind))
        gated = _ACTIVATIONS[spec.merger_activation](self._product(gate, x))
        return self._product(last, gated * self._product(up, x))

    def _joined(self, name: str, x: Tensor) -> Tensor:
        """One patch for each cell, by a matrix that is stored with all patches of one channel side by side."""
        spec = self.spec
        return self._product(name, x.view(-1, spec.cell, spec.width).transpose(1, 2).flatten(1))

    def _norm(self, name: str, x: Tensor, eps: float, kind: NormKind | None = None) -> Tensor:
        kind, size = kind or self.spec.facts.norm_kind, x.shape[-1:]
        if kind == "plain":
            return F.rms_norm(x, size, None, eps)
        weight = self._tensors[f"{name}.weight"].float()
        if kind == "layer":
            return F.layer_norm(x, size, weight, self._tensors[f"{name}.bias"].float(), eps)
        return F.rms_norm(x, size, weight if kind == "rms" else 1.0 + weight, eps)

    def _product(self, name: str, x: Tensor) -> Tensor:
        weight = self._tensors[f"{name}.weight"].float().flatten(1)
        bounds = [self._tensors[one].float() for one in bounds_of(name) if one in self._tensors]
        if not bounds:
            return F.linear(x, weight, self._bias(name))
        least, most, least_out, most_out = bounds
        x = F.linear(x.clamp(least, most), weight, self._bias(name))
        return x.clamp(least_out, most_out)

    def _bias(self, name: str) -> Tensor | None:
        bias = self._tensors.get(f"{name}.bias")
        return None if bias is None else bias.float()


def _across(x: Tensor, pairs: str) -> Tensor:
    """(…, K) in the order in which the numbers of a pair are half a head apart; scores need not know of it."""
    if pairs == "beside":
        return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return x if pairs == "across" else x.unflatten(-1, (2, 2, -1)).transpose(-2, -3).flatten(-3)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rope of (H, N, K): halves (a, b) of each head become (a·cos - b·sin, b·cos + a·sin)."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin
