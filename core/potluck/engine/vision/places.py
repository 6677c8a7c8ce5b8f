"""Where the patches of a picture stand: the order of cells and windows, and the angles of rope."""

import torch
from torch import Tensor

from potluck.model.vision.spec import TowerSpec


def cell_order(grid: tuple[int, int], merge: int) -> Tensor:
    """The patches, numbered line by line, in the order of their cells (N,)."""
    rows, columns = grid
    numbers = torch.arange(rows * columns).view(rows // merge, merge, columns // merge, merge)
    return numbers.transpose(1, 2).flatten()


def patch_angles(
    spec: TowerSpec, grid: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines (N, K) of the patches in the order of their cells; None: there is no rope.

    One half of the pairs turns by the row of the patch, and one by its column. A class token behind them does not turn.
    """
    facts, half = spec.facts, spec.head_dim // 2
    kind = facts.rope
    if kind is None:
        return None
    if kind == "halves":
        by_row = by_column = spec.theta ** -(torch.arange(0, half, 2, dtype=torch.float32) / half)
    else:
        each = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
        by_row, by_column = (spec.theta**-each).view(-1, 2).unbind(1)
    order = cell_order(grid, spec.merge)
    first, second = order // grid[1] + facts.rope_from, order % grid[1] + facts.rope_from
    if facts.turns_columns_first:
        first, second = second, first
    angles = torch.cat(
        (torch.outer(first.float(), by_row), torch.outer(second.float(), by_column)), 1
    )
    angles = torch.cat((angles, angles), 1)
    if facts.token is not None:
        angles = torch.cat((angles, torch.zeros_like(angles[:1])))
    return angles.cos().to(device), angles.sin().to(device)


def window_order(spec: TowerSpec, grid: tuple[int, int]) -> tuple[Tensor, list[int]]:
    """The patches in the order of their windows, and how many each has; none: all see the whole picture."""
    rows, columns = (side // spec.merge for side in grid)
    if not spec.window:
        return torch.arange(rows * columns * spec.cell), []
    cells = torch.arange(rows * columns)
    across = -(-columns // spec.window)
    window = cells // columns // spec.window * across + cells % columns // spec.window
    order = torch.argsort(window, stable=True)
    counts = torch.bincount(window)
    patches = order[:, None] * spec.cell + torch.arange(spec.cell)
    return patches.flatten(), [int(count) * spec.cell for count in counts]
