"""How much a generator has under way at once, and how long it waits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """All the backpressure of the driver, and its deadlines but the one of `Pipeline`.

    An answer under way has either known tokens in the pipeline (`under_way`) or tokens that follow
    from each other (`steps_ahead`). When its reader stops reading, nothing more is sent for it. A
    request beyond `conversations` waits for an answer to end.

    Attributes:
        conversations: most answers at a time, and most conversations whose caches are kept. The
            memory of the stages may have room for fewer.
        fork_tokens: how many tokens at the beginning of a prompt are taken from another conversation's
            caches, at least, and how many it may lose, at most, if its caches are used up for the prompt.
        repeated_tokens: most single tokens of one answer that are under way to be computed again.
            They wait for nothing but the stages.
        steps_ahead: how many steps may run ahead of the token that was given out last. With 2,
            one is computed, and the next one starts as soon as it ends.
        losses: how often an answer may lose its caches or its pipeline between two tokens. Then it
            ends with an error.
        other_answer_s: who waits for a turn begins nevertheless when no answer has got a token for so
            long. The readers of those under way may have stopped reading.
        replacement_s: how long an answer whose pipeline broke waits at most for another pipeline.
            Weights may have to be sent, over a slow link.
    """

    conversations: int = 32
    fork_tokens: int = 64
    repeated_tokens: int = 32
    steps_ahead: int = 2
    losses: int = 8
    other_answer_s: float = 30.0
    replacement_s: float = 600.0

    def under_way(self, stages: int, *, is_token: bool) -> int:
        """Most steps of known tokens that one answer has under way.

        Of chunks these are one for each stage, and the one that comes next.
        """
        return self.repeated_tokens if is_token else stages + 1
