"""One stage: a contiguous range of decoder layers on one device, and its sessions.

Rules of the file. A step is done whole or not at all: when one fails, the session goes back to where it
was, or to a checkpoint of its states, and the step may be sent again. A step that does not start where the
cache ends is refused with `need_replay`. A session's last step may be repeated: a token that was chosen is
answered from memory, and so are hidden states, if no other step was done since; else they are computed
again. What comes in is untrusted, and checked before anything is computed. Not thread-safe: one thread computes.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from torch import Tensor

from potluck.engine.caches.disk_work import Disk, at_once
from potluck.engine.caches.session_files import SessionFiles
from potluck.engine.forward_pass import ForwardPass
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.memory import out_of_memory
from potluck.engine.payload import Activations
from potluck.engine.rank_sums.ranks import Exchange
from potluck.engine.sampling.head import StageHead
from potluck.engine.session import Output, Session, StepTokens, need_replay
from potluck.engine.stage_sessions import StageSessions
from potluck.ids import SessionId
from potluck.model.cache_shares import CacheShares
from potluck.model.caches import MAX_CHUNK_TOKENS, WINDOW_SLACK
from potluck.wire.activation_messages import Sampling

logger = logging.getLogger(__name__)

MAX_SESSIONS = 1024  # known sessions; how many of them are cached depends on the budget


Together: TypeAlias = Callable[[Sequence[StepTokens]], AbstractContextManager[object]]


def alone(steps: Sequence[StepTokens]) -> AbstractContextManager[object]:
    """Compute steps without other ranks: the `together` of a stage that has whole layers."""
    return nullcontext()


class Stage(StageSessions):
    """One stage's computation. Make it with weights, then open sessions and run steps."""

    def __init__(
        self,
        weights: StageWeights,
        *,
        context: int,
        cache_budget: int,
        budget_now: Callable[[int], int] | None = None,
        epoch: int = 0,
        chunk: int = MAX_CHUNK_TOKENS,
        slack: int = WINDOW_SLACK,
        max_sessions: int = MAX_SESSIONS,
        files: SessionFiles | None = None,
        disk: Disk = at_once,
        exchange: Exchange | None = None,
        together: Together = alone,
        shares: CacheShares | None = None,
    ) -> None:
        """Make a stage with no sessions.

        Args:
            weights: what it computes with. They say which layers, and whether embedding and head.
            context: the most tokens of one session.
            cache_budget: the most bytes of all sessions' caches.
            budget_now: the budget as of now, as `CachePool` asks for it.
            epoch: of the plan in force. Set `epoch` again when a new plan leaves this stage as it is.
            chunk: the most tokens of one step.
            slack: rows that a sliding window's cache has beside the window, as `WindowCache` has it.
            max_sessions: that are known at a time.
            files: where caches are kept whose memory is given back. None: they are not kept.
            disk: has work done that waits for the disk.
            exchange: joins this rank with the others of its group, which are given the same steps in the
                same order. None: the weights are those of whole layers.
            together: entered around the computing of steps, which were checked, and have their room: by it the
                other ranks of a group are made to compute them too (`follow`).
            shares: which part of what each layer caches it has, so that caches move to stages that have other
                parts, and from these. None: it has all of each layer, and so have the others.
        """
        super().__init__(
            weights,
            context=context,
            cache_budget=cache_budget,
            budget_now=budget_now,
            epoch=epoch,
            chunk=chunk,
            slack=slack,
            max_sessions=max_sessions,
            files=files,
            disk=disk,
            shares=shares if shares is not None else CacheShares(config=weights.config),
        )
        self._exchange, self._together = exchange, together
        self._forward_pass = ForwardPass(weights, context, exchange)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and caches. `working_bytes` counts the hidden states that are kept."""
        return self.weights.nbytes + self._pool.nbytes

    @property
    def head(self) -> StageHead | None:
        """The final norm, `lm_head` and sampler; None on all stages but the last."""
        return self._forward_pass.head

    @property
    def is_exact_in_chunks(self) -> bool:
        """Whether the results do not depend on how tokens are cut into steps; see `StageWeights`."""
        return self.weights.is_exact_in_chunks

    @property
    def sends_ids(self) -> bool:
        """Whether a stage behind this one needs the tokens' ids."""
        config, layers = self.weights.config, self.weights.layers
        return self.head is None and config.needs_ids(
            range(layers[-1] + 1 if layers else 0, config.num_layers)
        )

    def show(
        self,
        picture: str,
        pixels: Tensor,
        *,
        mean: Sequence[float],
        deviation: Sequence[float],
        epoch: int,
    ) -> None:
        """Have the tower read a picture, whose rows come in a later step. `EncodedPictures.read` has the details.

        Raises:
            StaleEpochError, InvalidStepError, OutOfMemoryError: it cannot be read.
        """
        self._check_epoch(epoch)
        with out_of_memory("read a picture", self._device):
            self._forward_pass.pictures.read(picture, pixels, mean=mean, deviation=deviation)

    def rows_of(self, picture: str) -> Tensor:
        """The rows of a picture that was shown, for a first stage elsewhere."""
        return self._forward_pass.pictures.of(picture)

    def take_rows(self, picture: str, rows: Tensor, *, first: int, total: int, epoch: int) -> None:
        """Take rows that another tower has made, in place of `show`. `EncodedPictures.take` has the details.

        Raises:
            StaleEpochError, InvalidStepError, OutOfMemoryError: they cannot be taken.
        """
        self._check_epoch(epoch)
        with out_of_memory("take rows of a picture", self._device):
            self._forward_pass.pictures.take(picture, rows, first=first, total=total)

    def forward(
        self,
        session: SessionId,
        inputs: Tensor | Activations,
        *,
        epoch: int,
        step: int,
        position: int,
        prompt_end: int | None = None,
        sampling: Sampling | None = None,
        ids: Tensor | None = None,
    ) -> Output:
        """Run the tokens from `position` on through this stage.

        Args:
            session: one that was opened.
            inputs: token ids (T,) on the stage with the embedding, else hidden states (T, D), on
                the CPU; not changed.
            epoch: of the plan that the step belongs to.
            step: its number. The session's last step is not done twice.
            position: of the first token.
            prompt_end: where the session will end after the prompt's last chunk. The first chunk is
                refused if there is no room for all of it. It also chooses the rotary frequencies, of
                a model that has others for long texts. None: after these tokens.
            sampling: how the head chooses the next token. None: no token is needed.
            ids: those of the tokens (T,), beside hidden states, where a layer looks at them.

        Raises:
            StaleEpochError, UnknownSessionError, NeedReplayError: see `potluck.errors`.
            InvalidStepError: the inputs are not what this stage computes on.
            PromptError: a token is not in the vocabulary, or the context is full.
            OutOfMemoryError: there is no room for this step. The stage and its sessions live on.
        """
        if not isinstance(inputs, Activations):
            inputs = Activations.of(inputs)
        known = None if ids is None else Activations.of(ids)
        tokens = StepTokens(session, inputs, epoch, step, position, sampling, prompt_end, ids=known)
        (output,) = self.forward_together((tokens,))
        if isinstance(output, Output):
            return output
        raise output

    def forward_together(self, steps: Sequence[StepTokens]) -> list[Output | Exception]:
        """Run the tokens of several sessions through this stage, at once.

        Weights are read once for all of them. A step that fails does so alone.

        Args:
            steps: each of another session; where there are several, each of one token. (Several chunks would
                be computed one after the other: the head chooses one token from each row.)

        Returns:
            Of each step its result, or the error that `forward` raises.
        """
        results: dict[int, Output | Exception] = {}
        admitted: dict[int, Session] = {}
        for index, tokens in enumerate(steps):
            try:
                known = self._admit(tokens)
                if isinstance(known, Session):
                    admitted[index] = known
                else:
                    results[index] = known
            except Exception as error:  # noqa: BLE001 - it is this step's result
                results[index] = error
        # A later session may have taken the memory of an earlier one.
        for index, known in list(admitted.items()):
            if known.cache.capacity < steps[index].end:
                results[index] = need_replay(known.cache.length, steps[index].position)
                del admitted[index]
        computed = self._compute_or_each([steps[i] for i in admitted], list(admitted.values()))
        results.update(zip(admitted, computed, strict=True))
        return [results[index] for index in range(len(steps))]

    def follow(self, steps: Sequence[StepTokens]) -> None:
        """Compute steps that rank 0 of the group computes now: all of them, and at once as it does.

        What is cached beyond a step's position is of a step that rank 0 has given up, and is forgotten.

        Raises:
            PotluckError: a step cannot be done here, so none was; as `forward`.
        """
        sessions: list[Session] = []
        for tokens in steps:
            known = self._find(tokens.session, tokens.epoch)
            if tokens.position < known.cache.length:
                self._trim(known, tokens.position)
            self._forget_last(known)
            self._admit(tokens)
            sessions.append(known)
        for tokens, known in zip(steps, sessions, strict=True):
            if known.cache.capacity < tokens.end:  # a later session has taken its memory
                raise need_replay(known.cache.length, tokens.position)
        with self._out_of_memory(steps[0]):
            self._compute(steps, sessions)

    def _admit(self, tokens: StepTokens) -> Session | Output:
        """Check a step and make room for it. An output: it was done already."""
        known = self._find(tokens.session, tokens.epoch)
        is_repeated = known.last == tokens.identity
        if is_repeated and known.output is not None:
            return known.output
        self._bounds.check_inputs(tokens.inputs, tokens.end, has_pictures=bool(tokens.pictures))
        self._bounds.check_ids(tokens.ids, tokens.length)
        self._bounds.check_wishes(tokens.sampling, tokens.scoring, tokens.length)
        self._bounds.check_places(tokens.lag, tokens.places, tokens.position, tokens.length)
        self._bounds.check_pictures(tokens.pictures, tokens.length)
        self._bounds.check_drafts(
            tokens.drafts,
            tokens.length,
            tokens.sampling,
            is_alone=tokens.is_choice_alone and tokens.is_text,
        )
        if is_repeated or 0 < known.cache.length - tokens.position <= known.drafts:
            self._trim(known, tokens.position)
        if tokens.position != known.cache.length:
            raise need_replay(known.cache.length, tokens.position)
        if self.weights.embedding is not None and not all(
            map(self._forward_pass.pictures.has, tokens.pictures)
        ):  # others made room for themselves: the driver shows it again
            raise need_replay(known.cache.length, tokens.position)
        end = max(tokens.end, tokens.prompt_end or 0)
        self._bounds.check_context(end)
        self._choose_rope(known, tokens.position, end)
        with self._out_of_memory(tokens):
            self._reserve(tokens.session, end)
        return known

    def _compute_or_each(
        self, steps: Sequence[StepTokens], sessions: Sequence[Session]
    ) -> list[Output | Exception]:
        """Compute steps together, if these weights may; if that fails, compute each by itself."""
        if len(steps) > 1 and self.weights.computes_together:
            try:
                return self._compute(steps, sessions)
            except Exception:
                logger.exception("%d steps together failed, each is computed alone", len(steps))
        results: list[Output | Exception] = []
        for tokens, known in zip(steps, sessions, strict=True):
            try:
                with self._out_of_memory(tokens):
                    results += self._compute((tokens,), (known,))
            except Exception as error:  # noqa: BLE001 - it is this step's result
                results.append(error)
        return results

    def _out_of_memory(self, tokens: StepTokens) -> AbstractContextManager[None]:
        return out_of_memory(f"compute what follows position {tokens.position}", self._device)

    def _compute(
        self, steps: Sequence[StepTokens], sessions: Sequence[Session]
    ) -> list[Output | Exception]:
        """Compute steps of several sessions in one forward pass, and remember what came out."""
        for tokens, known in zip(steps, sessions, strict=True):
            known.cache.begin_step(tokens.position, tokens.length)
        try:
            with self._together(steps):
                outputs = self._forward_pass(steps, sessions)
        except BaseException:  # some layers may have changed their state
            if self._exchange is not None:
                self._exchange.abort()  # the other ranks wait for the sums of this one
            for tokens, known in zip(steps, sessions, strict=True):
                known.cache.trim(tokens.position)
            raise
        for tokens, known, output in zip(steps, sessions, outputs, strict=True):
            if isinstance(output, Output):
                known.cache.trim(output.position)  # some drafts may not be what was chosen
                known.drafts = 0 if output.hidden is None else len(tokens.drafts)
                self._remember(known, tokens.identity, output)
            else:
                known.cache.trim(tokens.position)
        return outputs

    def _remember(self, known: Session, last: tuple[int, int, int], output: Output) -> None:
        """Keep a step's output. Hidden states take megabytes: only the last step's are kept."""
        if output.hidden is not None:
            if self._holder is not None:
                self._holder.output = None
            self._holder = known
        known.last, known.output = last, output
