"""Choose the tokens of a step that guesses at them: exactly those that single steps would choose."""

from collections.abc import Callable, Sequence

from torch import Tensor

from potluck.engine.sampling.sampler import Choice
from potluck.errors import PotluckError


def choose_drafted(
    logits: Tensor, drafts: Sequence[int], position: int, choose: Callable[[int, Tensor], Choice]
) -> list[Choice]:
    """Choose token after token, as long as they are those that were guessed.

    A row of logits counts only where all guesses before it were right: it has then seen the tokens that it would have
    seen alone.

    Args:
        logits: (1 + drafts, V), of the step's first token and of each guess.
        drafts: the guesses.
        position: of the first token.
        choose: gives the token at a position, from its row of logits.

    Returns:
        At least one choice. All but the last one are drafts.

    Raises:
        PotluckError: none can be chosen. Of a later one the error comes again, with the step that follows.
    """
    chosen: list[Choice] = []
    for end, (row, draft) in enumerate(zip(logits, (*drafts, None), strict=True), position + 1):
        try:
            choice = choose(end, row)
        except PotluckError:
            if not chosen:
                raise
            break
        chosen.append(choice)
        if choice.token_id != draft:
            break
    return chosen
