"""The end of the last stage: logits of hidden states, and the token that is chosen from them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from potluck.engine.accelerator import GraphedHead
from potluck.engine.generated.singles import as_generated
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.sampling.sampler import Choice, Sampler
from potluck.wire.activation_messages import Sampling, Scoring

if TYPE_CHECKING:
    from potluck.engine.token_step import TokenStep

_SCORED_ROWS = 16  # logits at a time, which take 10 MB with a large vocabulary


def softcap(logits: Tensor, cap: float) -> Tensor:
    """Return cap · tanh(logits / cap), which lies between -cap and cap."""
    return (logits / cap).tanh_().mul_(cap)


class StageHead:
    """The final norm and `lm_head` of a stage that has them, and its sampler."""

    def __init__(self, weights: StageWeights, token_step: "TokenStep | None") -> None:
        """`token_step` is the stage's, if one token goes through the stage without torch."""
        self._weights, self._token_step = weights, token_step
        graphs = weights.graphs
        self._graphed = None if graphs is None else GraphedHead(graphs)
        generated = as_generated(weights.kernels)
        self._softcap = softcap if generated is None else generated.softcap
        self._sampler = Sampler(weights.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits: final norm, `lm_head`, scale and softcap, (T, D) → (T, V), f32."""
        assert self._weights.norm is not None
        assert self._weights.lm_head is not None
        logits = self._weights.lm_head(self._weights.norm(hidden)).float()
        return self._scaled(logits, None)[0]

    def next_logits(self, hidden: Tensor) -> tuple[Tensor, int | None]:
        """Compute the logits of one token's hidden states (1, D).

        Returns:
            Logits (V,), valid until the next call; and the first id of the largest, None if not known.
        """
        if self._token_step is not None:
            return self._scaled(*self._token_step.head_of(hidden))
        if self._graphed is not None:
            return self._graphed(hidden, self.logits)[0], None
        return self.logits(hidden)[0], None

    def step_logits(self) -> tuple[Tensor, int | None]:
        """The same of the token that went through the token step just now."""
        assert self._token_step is not None
        return self._scaled(*self._token_step.head())

    def choose(
        self,
        logits: Tensor,
        best: int | None,
        sampling: Sampling,
        *,
        position: int,
        history: Sequence[int],
    ) -> Choice:
        """Choose the token at `position`; `best` is the first id of the largest logit, if known."""
        if best is not None and _is_greedy(sampling):
            return Choice(token_id=best)
        return self._sampler.choose(logits, sampling, position=position, history=history)

    def scores(self, hidden: Tensor, scoring: Scoring) -> tuple[Choice, ...]:
        """The log-probabilities of the tokens that follow these hidden states (T, D), a few rows at a time."""
        found: list[Choice] = []
        for start in range(0, len(scoring.targets), _SCORED_ROWS):
            targets = scoring.targets[start : start + _SCORED_ROWS]
            rows = self.logits(hidden[start : start + len(targets)])
            found += [
                self._sampler.score(row, target, scoring.top)
                for row, target in zip(rows, targets, strict=True)
            ]
        return tuple(found)

    def embedding(self, hidden: Tensor) -> bytes:
        """The final norm of one token's hidden states (1, D), as (D,) in f32."""
        assert self._weights.norm is not None
        return self._weights.norm(hidden).float().cpu().numpy().tobytes()

    def _scaled(self, logits: Tensor, best: int | None) -> tuple[Tensor, int | None]:
        """Apply scale and softcap. Equal logits may appear, so `best` is dropped where they apply."""
        config = self._weights.config
        cap = config.logits_softcap
        if config.logits_divisor == 1.0 and cap is None:
            return logits, best
        if config.logits_divisor != 1.0:
            logits /= config.logits_divisor
        if cap is not None:
            logits = self._softcap(logits, cap)
        return logits, None


def _is_greedy(sampling: Sampling) -> bool:
    """Whether only the id of the largest logit is needed."""
    return (sampling.temperature, sampling.logprobs, sampling.is_changed) == (0, None, False)
