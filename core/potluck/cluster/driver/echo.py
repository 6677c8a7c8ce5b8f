"""The prompt of an answer, as a client wants to have it back: its text, and how likely its tokens are."""

from collections.abc import Mapping, Sequence

from potluck.api.events import Candidate, ChosenToken, Echo
from potluck.api.prompts import Prompt, TextPrompt
from potluck.model.text.detokenizer import Vocabulary
from potluck.wire.activation_messages import TokenScore


def echo_of(
    vocabulary: Vocabulary,
    prompt: Prompt,
    token_ids: Sequence[int],
    scores: Mapping[int, TokenScore],
) -> Echo:
    """The prompt with the log-probabilities of its tokens.

    Args:
        vocabulary: of the model.
        prompt: as the client sent it.
        token_ids: of the prompt.
        scores: of its tokens, by their positions; none, if they were not asked for.
    """

    def candidate(token_id: int, logprob: float) -> Candidate:
        token = vocabulary.raw(token_id) or b""
        return Candidate(token_id=token_id, token=token, logprob=logprob)

    pieces = [vocabulary.raw(token_id) or b"" for token_id in token_ids]
    logprobs = tuple(
        ChosenToken(
            chosen=candidate(token_ids[position], score.logprob),
            best=tuple(candidate(other.token_id, other.logprob) for other in score.top),
        )
        for position, score in sorted(scores.items())
    )
    text = b"".join(pieces).decode(errors="replace")
    return Echo(
        text=prompt.text if isinstance(prompt, TextPrompt) else text,
        first=pieces[0] if pieces else b"",
        logprobs=logprobs,
    )
