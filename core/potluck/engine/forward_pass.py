"""What a stage computes: the tokens of some sessions go through embedding, layers and head.

Nothing is checked or remembered here, but for the history that a session's penalties look at: see `stage`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.choosing import column_count, split_columns, with_columns
from potluck.engine.layers.rotary import Rotaries
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.payload import Activations
from potluck.engine.rank_sums.ranks import Exchange
from potluck.engine.sampling.drafted import choose_drafted
from potluck.engine.sampling.head import StageHead
from potluck.engine.sampling.sampler import Choice
from potluck.engine.session import Output, Session, StepTokens
from potluck.engine.vision.encoded import EncodedPictures
from potluck.errors import PotluckError
from potluck.wire.activation_messages import Sampling

if TYPE_CHECKING:
    from potluck.engine.token_step import TokenStep


class ForwardPass:
    """Computes the steps of sessions whose caches have room for them."""

    def __init__(
        self, weights: StageWeights, context: int, exchange: Exchange | None = None
    ) -> None:
        """`context` is the most tokens of one session; `exchange` joins the ranks of a group."""
        self._weights, self._exchange = weights, exchange
        self._device, self._dtype = weights.device, weights.dtype
        ropes = weights.config.ropes
        self._rotaries = Rotaries(ropes, context, weights.dtype, weights.device)
        self._token_step = _find_token_step(weights)
        self.pictures = EncodedPictures(weights.tower)
        self.head = None if weights.lm_head is None else StageHead(weights, self._token_step)

    def __call__(
        self, steps: Sequence[StepTokens], sessions: Sequence[Session]
    ) -> list[Output | Exception]:
        """Compute steps, each of another session, and write the caches.

        Returns:
            Of each step its result, or why no token could be chosen.
        """
        is_token = len(steps) == 1 and steps[0].length == 1 and steps[0].is_choice_alone
        is_token = is_token and steps[0].is_text
        if is_token and self._token_step is not None:
            return [self._run_token(self._token_step, steps[0], sessions[0])]
        return self._run(steps, sessions)

    def _run_token(
        self, token_step: "TokenStep", tokens: StepTokens, known: Session
    ) -> Output | Exception:
        """Do what `_run` does, for one token and without torch."""
        rotaries = self._rotaries.of(known.cache.stretch)
        ids = None if tokens.ids is None else tokens.ids.number
        place = tokens.position, rotaries, tokens.lag
        token_step(tokens.inputs, known.cache, *place, self._exchange, ids)
        if self.head is None:
            return Output(position=tokens.end, hidden=token_step.hidden)
        if tokens.sampling is None:
            return Output(position=tokens.end)
        return self._choose(*self.head.step_logits(), tokens, known)

    @torch.inference_mode()
    def _run(
        self, steps: Sequence[StepTokens], sessions: Sequence[Session]
    ) -> list[Output | Exception]:
        """Do it with tensors of torch, for any number of steps and tokens."""
        caches = [known.cache for known in sessions]
        parts = [self._part(*each) for each in zip(steps, caches, strict=True)]
        x = self._run_layers(steps, caches, parts)
        if self.head is None:
            hidden = x.cpu().split([tokens.length for tokens in steps])
            return [
                Output(
                    position=part.end,
                    hidden=Activations.of(self._sent(rows, part)),
                )
                for rows, part in zip(hidden, parts, strict=True)
            ]
        if steps[0].drafts:
            return [self._choose_drafted(x, steps[0], sessions[0])]
        if len(steps) == 1:
            scoring = steps[0].scoring
            scores = () if scoring is None else self.head.scores(x, scoring)
            if steps[0].sampling is None:
                return [Output(position=steps[0].end, scores=scores)]
            output = self._choose(*self.head.next_logits(x[-1:]), steps[0], sessions[0])
            if scores and isinstance(output, Output):
                output = replace(output, scores=scores)
            return [self._with_embedding(output, steps[0], x[-1:])]
        logits = self.head.logits(x)
        rows = zip(logits, x.split(1), steps, sessions, strict=True)
        return [
            self._with_embedding(self._choose(row, None, tokens, known), tokens, hidden)
            for row, hidden, tokens, known in rows
        ]

    def _with_embedding(
        self, output: Output | Exception, tokens: StepTokens, hidden: Tensor
    ) -> Output | Exception:
        """Add the embedding of a step's last token, with these hidden states (1, D), if it is wanted."""
        if isinstance(output, Exception) or not (tokens.sampling and tokens.sampling.embeds):
            return output
        assert self.head is not None
        return replace(output, embedding=self.head.embedding(hidden))

    def run_layers(self, steps: Sequence[StepTokens], caches: Sequence[SessionCache]) -> Tensor:
        """Hidden states after the last layer (T, D), of the tokens of all steps one after the other."""
        parts = [self._part(*each) for each in zip(steps, caches, strict=True)]
        return self._run_layers(steps, caches, parts)

    def _part(self, tokens: StepTokens, cache: SessionCache) -> Step:
        rotaries = self._rotaries.of(cache.stretch)
        ids = self._layer_ids(tokens)
        places = None if tokens.places is None else tokens.places.tensor
        tower = self._weights.config.tower
        sees_ahead = None if tower is None else tower.facts.sees_ahead
        return Step(
            tokens.position,
            tokens.length,
            rotaries,
            self._device,
            ids,
            self._exchange,
            lag=tokens.lag,
            places=places,
            ahead=[(some.begin, some.begin + some.rows) for some in tokens.pictures]
            if sees_ahead is not None
            else (),
            in_windows=sees_ahead == "windows",
        )

    def _received(self, tokens: StepTokens, part: Step) -> Tensor:
        """Token ids, or hidden states (T, D); the step gets what was chosen for its tokens before this stage."""
        inputs, count = tokens.inputs.tensor, self._weights.follows
        if tokens.pictures and self._weights.embedding is None:
            inputs = inputs[:, : self._weights.config.width]  # behind them is what `_deep` takes
        if count is None:
            return inputs
        width = self._weights.config.width
        hidden, part.choice = split_columns(inputs, width, count, tokens.position)
        return hidden

    def _sent(self, hidden: Tensor, part: Step) -> Tensor:
        """Hidden states, with what was chosen for the tokens behind them, if the next stage begins with it."""
        if column_count(self._weights.next_follows, part.end, hidden.dtype):
            return with_columns(hidden, part.choice)
        return hidden

    def _run_layers(
        self, steps: Sequence[StepTokens], caches: Sequence[SessionCache], parts: Sequence[Step]
    ) -> Tensor:
        inputs = [self._received(*each) for each in zip(steps, parts, strict=True)]
        together = inputs[0] if len(inputs) == 1 else torch.cat(inputs)
        if self._weights.embedding is not None:
            x = self._weights.embedding(together)
            if (eps := self._weights.config.embedding_norm_eps) is not None:
                x = torch.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)
            if (multiplier := self._weights.config.embedding_multiplier) != 1.0:
                # Gemma was trained with the multiplier rounded to the compute dtype.
                x *= torch.tensor(multiplier, dtype=self._dtype)
            self._put_pictures(x, steps)
            if (streams := self._weights.config.streams) is not None:
                x = x.repeat(1, streams.count)
            if (carried := self._weights.config.carried) is not None:
                more = carried.width - carried.hidden_size - carried.embedding_size
                x = torch.cat([x, x[:, : carried.embedding_size], x.new_zeros(len(x), more)], 1)
        else:
            x = together.to(self._device, self._dtype)
        deep = self._deep(steps)
        if len(x) == 1 and deep is None:
            for run in self._weights.runs:
                x = run(x, caches[0].layers, parts[0])
            return x
        if deep is None and len(steps) > 1 and (singles := self._weights.singles) is not None:
            return singles(x, caches, parts)
        for index, block in enumerate(self._weights.blocks):
            x = block.forward_all(x, [cache.layers[index] for cache in caches], parts)
            if deep is not None and deep.shape[1]:  # of the layers from this one on
                x += deep[:, : x.shape[1]]
                deep = deep[:, x.shape[1] :]
        return x if deep is None or not deep.shape[1] else torch.cat([x, deep], 1)

    def _deep(self, steps: Sequence[StepTokens]) -> Tensor | None:
        """What pictures add after each layer from the stage's first one on, (T, n · D); None: nothing.

        The first stage has it of the tower, the others behind the hidden states.
        """
        width, layers = self._weights.config.width, self._weights.config.deep_layers
        is_first = self._weights.embedding is not None
        left = layers - (0 if is_first else next(iter(self._weights.layers), layers))
        if left <= 0 or not any(tokens.pictures for tokens in steps):
            return None
        parts: list[Tensor] = []
        for tokens in steps:
            if tokens.pictures and not is_first:
                parts.append(tokens.inputs.tensor[:, width:].to(self._device, self._dtype))
                continue
            part = torch.zeros(
                (tokens.length, left * width), dtype=self._dtype, device=self._device
            )
            for some in tokens.pictures:
                rows = self.pictures.rows(some)[:, width : (1 + left) * width]
                part[some.begin :][: some.rows] = rows.to(self._device, self._dtype)
            parts.append(part)
        return torch.cat(parts)

    def _put_pictures(self, x: Tensor, steps: Sequence[StepTokens]) -> None:
        """Write the rows of pictures over the embeddings of their tokens."""
        begin = 0
        for tokens in steps:
            for some in tokens.pictures:
                rows = self.pictures.rows(some)[:, : x.shape[1]]
                x[begin + some.begin :][: some.rows] = rows.to(self._device, self._dtype)
            begin += tokens.length

    def _layer_ids(self, tokens: StepTokens) -> Tensor | None:
        """The ids that layers look at: to them all rows of pictures are the same token, where the model says which."""
        ids = None if tokens.ids is None else tokens.ids.tensor
        if self._weights.embedding is not None:
            ids = tokens.inputs.tensor
        if ids is None or not tokens.pictures or (own := self._weights.config.picture_id) is None:
            return ids
        ids = ids.clone()
        for some in tokens.pictures:
            ids[some.begin :][: some.rows] = own
        return ids

    def _choose(
        self, logits: Tensor, best: int | None, tokens: StepTokens, known: Session
    ) -> Output | Exception:
        """Choose the next token, if one is wanted. An error is that of this step alone."""
        sampling, end = tokens.sampling, tokens.end
        if sampling is None:
            return Output(position=end)
        try:
            choice = self._choose_at(end, logits, best, sampling, known)
        except PotluckError as error:
            return error
        return Output(position=end, choice=choice)

    def _choose_at(
        self, end: int, logits: Tensor, best: int | None, sampling: Sampling, known: Session
    ) -> Choice:
        """Choose the token at a position. Raises PotluckError."""
        assert self.head is not None
        history = known.history if sampling.history is None else list(sampling.history)
        choice = self.head.choose(logits, best, sampling, position=end, history=history)
        if sampling.needs_history:
            known.history = [*history, choice.token_id]
        return choice

    def _choose_drafted(self, x: Tensor, tokens: StepTokens, known: Session) -> Output | Exception:
        """Choose the tokens behind hidden states (T, D) of a step with guesses, as one step after the other would."""
        assert self.head is not None
        assert tokens.sampling is not None
        choose = partial(self._choose_at, best=None, sampling=tokens.sampling, known=known)
        try:
            *accepted, choice = choose_drafted(
                self.head.logits(x), tokens.drafts, tokens.position, choose
            )
        except PotluckError as error:
            return error
        end = tokens.position + 1 + len(accepted)
        return Output(position=end, choice=choice, accepted=tuple(accepted))


def _find_token_step(weights: StageWeights) -> "TokenStep | None":
    if not weights.is_generated:
        return None
    # Imported only where it is needed, since it imports llvmlite, which not every computer has.
    from potluck.engine.token_step import make_token_step

    return make_token_step(weights)
