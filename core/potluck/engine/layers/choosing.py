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


class Choice:
    """What was chosen for some tokens, `count` positions of each: as positions, or as a mask of what is cached.

    Tokens with no more than `count` cached ones, themselves among them, see all of these, and have no positions.
    """

    __slots__ = ("_mask", "_places", "_sees_fewer", "count", "position")

    def __init__(
        self,
        count: int,
        position: int,
        *,
        mask: Tensor | None = None,
        places: Tensor | None = None,
        sees_fewer: bool = False,
    ) -> None:
        """Keep what was chosen for tokens from `position` on.

        Args:
            count: how many positions a token sees of more.
            position: of the first token.
            mask: (T, length), True where a token sees one.
            places: (T, count), integers, in their order; of a token that sees all, anything.
            sees_fewer: a token may see fewer than `count`: of pools, the last is not always whole.
        """
        assert (mask is None) != (places is None)
        self.count, self.position = count, position
        self._mask, self._places, self._sees_fewer = mask, places, sees_fewer

    @property
    def places(self) -> Tensor:
        """(T, count), integers."""
        if self._places is None:
            assert self._mask is not None
            if self._sees_fewer and len(self._mask) == 1:
                return self._mask[0].nonzero()[None, :, 0]
            seen = self._mask.to(torch.int8)
            order = torch.sort(seen, dim=-1, descending=True, stable=True).indices
            self._places = order[:, : self.count]
        return self._places

    def mask(self, causal: Tensor) -> Tensor:
        """What each token sees, (T, length), of a `causal` mask of the same shape."""
        if self._mask is None:
            assert self._places is not None
            T, length = causal.shape
            seen = torch.zeros_like(causal)
            first = min(
                T, max(0, self.count - self.position)
            )  # the first one that does not see all
            seen[:first] = causal[:first]
            places = self._places[first:].to(causal.device, torch.int64)
            seen[first:].scatter_(1, places.clamp(0, length - 1), True)
            self._mask = seen & causal
        return self._mask


def some_choice(count: int, position: int, tokens: int, device: torch.device) -> Choice | None:
    """A choice for tokens, to measure with: positions all over what is cached. None: the tokens see all."""
    if position + tokens <= count:
        return None
    ends = torch.arange(position, position + tokens, device=device, dtype=torch.float64)
    places = torch.outer(ends, torch.linspace(0, 1, count, device=device, dtype=torch.float64))
    return Choice(count, position, places=places.long())


# Between two stages a choice travels behind the hidden states, in columns that have the bits of i32.


def column_count(count: int | None, end: int, dtype: torch.dtype) -> int:
    """How many columns hold the positions of tokens before `end` that see so many; 0: they see all."""
    if count is None or end <= count:
        return 0
    return count * torch.int32.itemsize // dtype.itemsize


def with_columns(hidden: Tensor, choice: Choice | None) -> Tensor:
    """Hidden states (T, D), and the positions of each token in columns behind them."""
    if choice is None:
        return hidden
    places = choice.places.to(hidden.device, torch.int32).contiguous()
    return torch.cat((hidden, places.view(hidden.dtype)), -1)


def split_columns(
    inputs: Tensor, width: int, count: int, position: int
) -> tuple[Tensor, Choice | None]:
    """What `with_columns` joined, of tokens from `position` on that see so many; `width` is that of hidden states."""
    if inputs.shape[1] == width:
        return inputs, None
    places = inputs[:, width:].contiguous().view(torch.int32)
    # Of another computer: kernels read the rows of these positions.
    places = places.clamp(0, position + len(inputs) - 1)
    return inputs[:, :width], Choice(count, position, places=places)
