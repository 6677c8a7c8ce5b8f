"""One stage: a contiguous range of decoder layers on one device, and its sessions.

Rules of the file. A step is done whole or not at all: when one fails, the session goes back to where it
was, or to a checkpoint of its states, and the step may be sent again. A step that does not start where the
cache ends is refused with `need_replay`. A session's last step may be repeated: a token that was chosen is answered from memory, and
so are hidden states, as long as no other step was done since; then they are computed again. What comes in
is untrusted: token ids, shapes and sizes are checked before anything is computed.
Not thread-safe: one thread computes, behind a queue.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.engine.accelerator import GraphedHead
from potluck.engine.attention import Step
from potluck.engine.builder import StageWeights
from potluck.engine.cache_pool import CachePool
from potluck.engine.kvcache import SessionCache
from potluck.engine.memory import out_of_memory
from potluck.engine.payload import Activations
from potluck.engine.rotary import Rotary
from potluck.engine.sampler import Choice, Sampler
from potluck.engine.step_bounds import StepBounds
from potluck.errors import NeedReplayError, StaleEpochError, UnknownSessionError
from potluck.ids import SessionId
from potluck.model.caches import MAX_CHUNK_TOKENS, WINDOW_SLACK, CacheSizes
from potluck.wire.messages import Sampling

if TYPE_CHECKING:
    from potluck.engine.token_step import TokenStep

MAX_SESSIONS = 1024  # known sessions; how many of them are cached depends on the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The result of a step: hidden states for the next stage, or a token from the head."""

    position: int  # where the session's cache ends now
    hidden: Activations | None = None  # (T, D), in the compute dtype; None from the head
    choice: Choice | None = None  # None also if no token was asked for


@dataclass(slots=True)
class _Session:
    cache: SessionCache
    last: tuple[int, int, int] | None = None  # (step, position, tokens) of the step done last
    output: Output | None = None  # of that step; None: it is not kept
    history: list[int] = field(default_factory=list[int])  # for the repetition penalty


class Stage:
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
        """
        config = weights.config
        self.weights = weights
        self.context = context
        self.epoch = epoch
        self._bounds = StepBounds(
            vocabulary=config.vocab_size,
            hidden=None if weights.embedding is not None else config.hidden_size,
            chunk=chunk,
            context=context,
        )
        self._max_sessions = max_sessions
        self._device, self._dtype = weights.device, weights.dtype
        self._rotaries = [
            Rotary(rope, context, weights.dtype, weights.device) for rope in config.ropes.distinct
        ]
        sizes = CacheSizes(number_bytes=weights.cache_dtype.itemsize, chunk=chunk, slack=slack)
        self.caches = tuple(block.spec.mixer.cache(sizes) for block in weights.blocks)
        self._pool = CachePool(
            self.caches,
            dtype=weights.cache_dtype,
            device=weights.device,
            context=context,
            budget=cache_budget,
            budget_now=budget_now,
        )
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()  # latest used last
        self._holder: _Session | None = None  # the session whose hidden states are kept
        self._sampler = Sampler()
        graphs = None if weights.lm_head is None else weights.graphs
        self._graphed_head = None if graphs is None else GraphedHead(graphs)
        self._token_step = _find_token_step(weights, self._rotaries)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and caches. `working_bytes` counts the hidden states that are kept."""
        return self.weights.nbytes + self._pool.nbytes

    @property
    def is_exact_in_chunks(self) -> bool:
        """Whether the results do not depend on how tokens are cut into steps; see `StageWeights`."""
        return self.weights.is_exact_in_chunks

    @property
    def cache_tokens(self) -> int:
        """The most tokens that a session can have here."""
        return self._pool.tokens

    def position(self, session: SessionId) -> int:
        """How many tokens of the session are cached; 0 if it is not known."""
        known = self._sessions.get(session)
        return known.cache.length if known else 0

    def open(self, session: SessionId, *, epoch: int) -> None:
        """Begin a session at position 0. One of the same name is forgotten."""
        self.close(session, epoch=epoch)
        while len(self._sessions) >= self._max_sessions:
            self.close(next(iter(self._sessions)), epoch=epoch)
        self._sessions[session] = _Session(self._pool.open(session))

    def close(self, session: SessionId, *, epoch: int) -> None:
        """Forget a session. One that is not known is already forgotten."""
        self._check_epoch(epoch)
        if (known := self._sessions.pop(session, None)) is not None:
            self._forget_last(known)
        self._pool.close(session)

    def trim(self, session: SessionId, position: int, *, epoch: int) -> None:
        """Forget the cached tokens from `position` on.

        If a layer no longer holds all tokens of its window there, or has no checkpoint of its state, the
        session goes back further, to the position where all layers can go on. The next step is then
        answered with `need_replay` from there.

        Raises:
            NeedReplayError: less than that is cached; nothing was changed.
        """
        known = self._find(session, epoch)
        if position > known.cache.length:
            raise _need_replay(known.cache.length, position)
        self._trim(known, position)

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
                refused if there is no room for all of it. None: after these tokens.
            sampling: how the head chooses the next token. None: no token is needed.

        Raises:
            StaleEpochError, UnknownSessionError, NeedReplayError: see `potluck.errors`.
            InvalidStepError: the inputs are not what this stage computes on.
            PromptError: a token is not in the vocabulary, or the context is full.
            OutOfMemoryError: there is no room for this step. The stage and its sessions live on.
        """
        known = self._find(session, epoch)
        if not isinstance(inputs, Activations):
            inputs = Activations.of(inputs)
        T = inputs.shape[0] if inputs.shape else 0
        is_repeated = known.last == (step, position, T)
        if is_repeated and known.output is not None:
            return known.output
        self._bounds.check_inputs(inputs)
        if is_repeated:
            self._trim(known, position)
        if position != known.cache.length:
            raise _need_replay(known.cache.length, position)
        end = max(position + T, prompt_end or 0)
        self._bounds.check_context(end)
        with out_of_memory(f"compute what follows position {position}", self._device):
            self._reserve(session, end)
            known.cache.begin_step(position, T)
            try:
                if T == 1 and self._token_step is not None:
                    output = self._run_token(self._token_step, inputs, known, position, sampling)
                else:
                    output = self._run(inputs.tensor, known, position, sampling)
            except BaseException:  # some layers may have changed their state
                known.cache.trim(position)
                raise
        self._remember(known, (step, position, T), output)
        return output

    def _remember(self, known: _Session, last: tuple[int, int, int], output: Output) -> None:
        """Keep a step's output. Hidden states take megabytes: only the last step's are kept."""
        if output.hidden is not None:
            if self._holder is not None:
                self._holder.output = None
            self._holder = known
        known.last, known.output = last, output

    def _forget_last(self, known: _Session) -> None:
        known.last = known.output = None
        if self._holder is known:
            self._holder = None

    def _trim(self, known: _Session, position: int) -> None:
        known.cache.trim(position)
        self._forget_last(known)
        del known.history[known.cache.length :]

    def _run_token(
        self,
        token_step: "TokenStep",
        inputs: Activations,
        known: _Session,
        position: int,
        sampling: Sampling | None,
    ) -> Output:
        """Do what `_run` does, for one token and without torch."""
        token_step(inputs, known.cache, position)
        if self.weights.lm_head is None:
            return Output(position=position + 1, hidden=token_step.hidden)
        if sampling is None:
            return Output(position=position + 1)
        return self._choose(*self._scaled(*token_step.head()), known, position + 1, sampling)

    @torch.inference_mode()
    def _run(
        self, inputs: Tensor, known: _Session, position: int, sampling: Sampling | None
    ) -> Output:
        """Run the tokens through all that this stage has, and write the cache."""
        x = self._run_layers(inputs, known.cache, position)
        end = position + x.shape[0]
        if self.weights.lm_head is None:
            return Output(position=end, hidden=Activations.of(x.cpu()))
        if sampling is None:
            return Output(position=end)
        return self._choose(*self.next_logits(x[-1:]), known, end, sampling)

    def _run_layers(self, inputs: Tensor, cache: SessionCache, position: int) -> Tensor:
        if self.weights.embedding is not None:
            x = self.weights.embedding(inputs)
            if (multiplier := self.weights.config.embedding_multiplier) != 1.0:
                # Gemma was trained with the multiplier rounded to the compute dtype.
                x *= torch.tensor(multiplier, dtype=self._dtype)
        else:
            x = inputs.to(self._device, self._dtype)
        step = Step(position, x.shape[0], self._rotaries, self._device)
        if step.tokens == 1:
            for run in self.weights.runs:
                x = run(x, cache.layers, step)
            return x
        for block, layer in zip(self.weights.blocks, cache.layers, strict=True):
            x = block.forward(x, layer, step)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits: final norm, `lm_head`, scale and softcap, (T, D) → (T, V), f32."""
        assert self.weights.norm is not None
        assert self.weights.lm_head is not None
        logits = self.weights.lm_head(self.weights.norm(hidden)).float()
        return self._scaled(logits, None)[0]

    def next_logits(self, hidden: Tensor) -> tuple[Tensor, int | None]:
        """Compute the logits of one token's hidden states (1, D).

        Returns:
            Logits (V,), valid until the next call; and the first id of the largest, None if not known.
        """
        if self._token_step is not None:
            return self._scaled(*self._token_step.head_of(hidden))
        if self._graphed_head is not None:
            return self._graphed_head(hidden, self.logits)[0], None
        return self.logits(hidden)[0], None

    def _scaled(self, logits: Tensor, best: int | None) -> tuple[Tensor, int | None]:
        """Apply scale and softcap. Equal logits may appear, so `best` is dropped where they apply."""
        config = self.weights.config
        cap = config.logits_softcap
        if config.logits_divisor == 1.0 and cap is None:
            return logits, best
        if config.logits_divisor != 1.0:
            logits /= config.logits_divisor
        if cap is not None:
            logits = (logits / cap).tanh_().mul_(cap)
        return logits, None

    def _choose(
        self, logits: Tensor, best: int | None, known: _Session, end: int, sampling: Sampling
    ) -> Output:
        history = known.history
        if sampling.history is not None:
            self._bounds.check_history(sampling.history)
            history = list(sampling.history)
        if best is not None and _is_greedy(sampling):
            choice = Choice(token_id=best)
        else:
            choice = self._sampler.choose(logits, sampling, position=end, history=history)
        if sampling.repetition_penalty != 1.0:
            known.history = [*history, choice.token_id]
        return Output(position=end, choice=choice)

    def _reserve(self, session: SessionId, tokens: int) -> None:
        self._sessions.move_to_end(session)
        for evicted in self._pool.reserve(session, tokens):
            self._forget_last(self._sessions[evicted])

    def _find(self, session: SessionId, epoch: int) -> _Session:
        self._check_epoch(epoch)
        if (known := self._sessions.get(session)) is None:
            raise UnknownSessionError(
                "This conversation is not known here any more. Open it again and send it from its"
                " beginning.",
                session=session,
            )
        return known

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise StaleEpochError(
                f"The step belongs to plan {epoch}; plan {self.epoch} is in force here.",
                epoch=epoch,
                current=self.epoch,
            )


def _find_token_step(weights: StageWeights, rotaries: Sequence[Rotary]) -> "TokenStep | None":
    if not weights.is_generated:
        return None
    # Imported only where it is needed, since it imports llvmlite, which not every computer has.
    from potluck.engine.token_step import make_token_step

    return make_token_step(weights, rotaries)


def _is_greedy(sampling: Sampling) -> bool:
    """Whether only the id of the largest logit is needed."""
    return (sampling.temperature, sampling.repetition_penalty, sampling.logprobs) == (0, 1, None)


def _need_replay(cached: int, position: int) -> NeedReplayError:
    return NeedReplayError(
        f"The step assumes {position} cached tokens, and {cached} are cached here: send the"
        f" conversation again from position {cached}.",
        position=cached,
    )
