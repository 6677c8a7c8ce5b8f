"""Which cached tokens a query sees, by their scores: those with the highest ones.

The rule is one for all who choose, here and in generated kernels, so that a token chooses the same alone and among
others: of equal scores, that of the earlier token counts as higher; a score that is NaN is the highest.
"""

import torch
from torch import Tensor


def choose(scores: Tensor, count: int) -> Tensor:
    """For each row of scores (T, n), f32, with n ≥ `count`, True where one is among the highest `count`."""
    scores = scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    least = scores.topk(count, -1).values[:, -1:]
    above, equal = scores > least, scores == least
    wanted = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= wanted))
