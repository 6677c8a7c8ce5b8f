"""Check the inputs of a step before anything is computed, since they come from other computers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from potluck.engine.layers.choosing import column_count
from potluck.engine.payload import Activations
from potluck.errors import ContextExceededError, InvalidStepError, PromptError
from potluck.wire.activation_messages import PictureRows, Sampling, Scoring

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBounds:
    """The bounds of one stage."""

    vocabulary: int  # token ids
    hidden: int | None  # size of a hidden state; None: the stage takes token ids
    chunk: int  # the most tokens of a step
    context: int  # the most tokens of a session
    needs_ids: bool = False  # whether a layer looks at ids of tokens
    follows: int | None = None  # see `StageWeights`
    takes_drafts: bool = False  # see `StageSessions`
    deep: int = 0  # numbers behind the hidden states of a step with pictures

    def check_inputs(self, inputs: Activations, end: int, *, has_pictures: bool = False) -> None:
        """Refuse inputs other than (T,) token ids of the vocabulary, or (T, D) hidden states.

        Behind these there may be columns with what a layer has chosen for tokens before position `end`, and with
        what rows of pictures add.

        Raises:
            InvalidStepError: shape, dtype or number of tokens are wrong.
            PromptError: a token is not in the vocabulary.
        """
        takes_ids = self.hidden is None
        tokens = inputs.shape[0] if inputs.shape else 0
        columns = column_count(self.follows, end, inputs.dtype) + self.deep * has_pictures
        shape = (tokens,) if self.hidden is None else (tokens, self.hidden + columns)
        dtypes = _INTEGERS if takes_ids else _FLOATS
        if inputs.shape != shape or inputs.dtype not in dtypes or not 0 < tokens <= self.chunk:
            wanted = "token ids [T]" if takes_ids else f"hidden states [T, {shape[-1]}]"
            raise InvalidStepError(
                f"The stage takes {wanted} of 1 to {self.chunk} tokens, and got"
                f" {list(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')}.",
            )
        if takes_ids:
            self._check_tokens(inputs)

    def check_ids(self, ids: Activations | None, tokens: int) -> None:
        """Check the ids of tokens whose hidden states came, if a layer looks at them.

        Raises:
            InvalidStepError: they are missing, or not those of so many tokens.
            PromptError: a token is not in the vocabulary.
        """
        if self.hidden is None or not self.needs_ids:
            return
        if ids is None or ids.shape != (tokens,) or ids.dtype not in _INTEGERS:
            raise InvalidStepError(
                f"The stage needs the ids of {tokens} tokens beside their hidden states, and they did not"
                " come. The other computer runs another version."
            )
        self._check_tokens(ids)

    def _check_tokens(self, ids: Activations) -> None:
        if ids.shape == (1,):
            self._check_token(ids.number)
            return
        for bound in ids.tensor.aminmax():
            self._check_token(int(bound))

    def check_places(
        self, lag: int, places: Activations | None, position: int, tokens: int
    ) -> None:
        """Check rope's positions of a step of so many tokens from a position on.

        Raises:
            InvalidStepError: there are more or fewer of them than tokens, or they are outside of the context.
        """
        if lag > position:
            raise InvalidStepError(f"A step at position {position} has a lag of {lag} positions.")
        if places is None:
            return
        if places.shape != (3, tokens):
            raise InvalidStepError(
                f"A step of {tokens} tokens came with {list(places.shape)} places of pictures."
            )
        low, high = (int(bound) for bound in places.tensor.aminmax())
        if low < 0 or high >= self.context:
            raise InvalidStepError(f"A step has the places {low} to {high} in a picture.")

    def check_pictures(self, pictures: Sequence[PictureRows], tokens: int) -> None:
        """Check that a step of so many tokens has those that are rows of pictures, in their order.

        Raises:
            InvalidStepError: it has not.
        """
        end = 0
        for some in pictures:
            if some.begin < end or (end := some.begin + some.rows) > tokens:
                raise InvalidStepError(
                    f"A step of {tokens} tokens has rows of a picture from {some.begin} on."
                )

    def check_wishes(self, sampling: Sampling | None, scoring: Scoring | None, tokens: int) -> None:
        """Check what is wanted of a step of so many tokens; see `check_sampling` and `check_scoring`."""
        if sampling is not None:
            self.check_sampling(sampling)
        if scoring is not None:
            self.check_scoring(scoring, tokens)

    def check_sampling(self, sampling: Sampling) -> None:
        """Refuse a sampling with a token that is not in the vocabulary, or that allows none.

        Raises:
            PromptError: it has such a token.
            InvalidStepError: a bitmap is not of this vocabulary, or no token is allowed.
        """
        allowed = sampling.allowed
        biased = [entry.token_id for entry in sampling.logit_bias]
        for ids in (sampling.history or (), biased, allowed or ()):
            if not isinstance(ids, bytes):
                for bound in (min(ids, default=0), max(ids, default=0)):
                    self._check_token(bound)
        if isinstance(allowed, bytes):
            size, unused = (self.vocabulary + 7) // 8, -self.vocabulary % 8
            if len(allowed) != size or allowed[-1] >> (8 - unused):
                raise InvalidStepError(
                    f"A map of allowed tokens has {len(allowed)} bytes or other tokens than the"
                    f" {self.vocabulary} of the model, which take {size} bytes."
                )
        if allowed is not None and not any(allowed if isinstance(allowed, bytes) else (allowed,)):
            raise InvalidStepError("No token is allowed, so none can be chosen.")

    def check_drafts(
        self, drafts: Sequence[int], tokens: int, sampling: Sampling | None, *, is_alone: bool
    ) -> None:
        """Refuse guesses that are not the last tokens of a step of so many, or where more is wanted than tokens.

        Args:
            drafts: their ids.
            tokens: of the step.
            sampling: of the step.
            is_alone: whether it has neither pictures nor scores or embeddings to give.

        Raises:
            PromptError: one is not in the vocabulary.
            InvalidStepError: they cannot be computed here.
        """
        if not drafts:
            return
        is_plain = is_alone and sampling is not None and sampling.allowed is None
        if not (self.takes_drafts and is_plain and tokens == 1 + len(drafts)):
            raise InvalidStepError(
                f"The stage cannot compute a step of {tokens} tokens with {len(drafts)} guesses."
            )
        for draft in drafts:
            self._check_token(draft)

    def check_scoring(self, scoring: Scoring, tokens: int) -> None:
        """Refuse more targets than the step has tokens, and those that are not in the vocabulary.

        Raises:
            InvalidStepError: there are more.
            PromptError: one is not in the vocabulary.
        """
        if len(scoring.targets) > tokens:
            raise InvalidStepError(
                f"A step of {tokens} tokens has {len(scoring.targets)} targets that follow them."
            )
        self._check_token(max(scoring.targets))

    def check_context(self, tokens: int) -> None:
        """Refuse a session of more tokens than the context has.

        Raises:
            ContextExceededError: it has more.
        """
        if tokens > self.context:
            raise ContextExceededError(
                f"the conversation has {tokens}",
                "Begin a new conversation, or load the model with a longer context.",
                tokens=tokens,
                context=self.context,
            )

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.vocabulary:
            raise PromptError(
                f"The token {token} is not one of the model's {self.vocabulary}. The prompt was made"
                " with another model's tokenizer.",
                token=token,
            )
