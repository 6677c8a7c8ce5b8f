"""One stage: a contiguous range of decoder layers on one device, and its sessions.

Rules of the file. A step is done whole or not at all: a session's position moves after the last layer,
so a step that fails may be sent again. A step that does not start where the cache ends is refused with
`need_replay`; the very step that was done last is answered from memory. What comes in is untrusted:
token ids, shapes and sizes are checked before anything is computed.
Not thread-safe: one thread computes, behind a queue.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.engine.accelerator import GraphedHead, find_graphs
from potluck.engine.attention import Step
from potluck.engine.builder import StageWeights
from potluck.engine.kvcache import CachePool, SessionCache
from potluck.engine.memory import out_of_memory
from potluck.engine.payload import Activations
from potluck.engine.rotary import Rotary
from potluck.engine.sampler import Choice, choose
from potluck.errors import (
    InvalidStepError,
    NeedReplayError,
    PromptError,
    StaleEpochError,
    UnknownSessionError,
)
from potluck.ids import SessionId
from potluck.model.footprint import MAX_CHUNK_TOKENS
from potluck.wire.messages import Sampling

if TYPE_CHECKING:
    from potluck.engine.token_step import TokenStep

MAX_SESSIONS = 1024  # that are known; how many are cached is a matter of the budget

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a step gives: hidden states for the next stage, or from the head a token."""

    position: int  # where the session's cache ends now
    hidden: Activations | None = None  # (T, D), in the compute dtype; None where the head is
    choice: Choice | None = None  # None also where no token was asked for


@dataclass(slots=True)
class _Session:
    cache: SessionCache
    last: tuple[tuple[int, int, int], Output] | None = None  # (step, position, tokens)
    history: list[int] = field(default_factory=list[int])  # for the repetition penalty


class Stage:
    """The computing of one stage. Give it weights, then open sessions and send steps."""

    def __init__(
        self,
        weights: StageWeights,
        *,
        context: int,
        cache_budget: int,
        budget_now: Callable[[int], int] | None = None,
        epoch: int = 0,
    ) -> None:
        """Make a stage with no sessions.

        Args:
            weights: what it computes with; they say which layers, and whether embedding and head.
            context: tokens that one session holds at most.
            cache_budget: bytes that all sessions' caches hold at most.
            budget_now: the same as of now, as `CachePool` asks for it.
            epoch: of the plan in force; set `epoch` anew when a plan leaves this stage as it is.
        """
        config = weights.config
        self.weights = weights
        self.context = context
        self.epoch = epoch
        self._device, self._dtype = weights.device, weights.dtype
        self._rotaries = [
            Rotary(rope, context, weights.dtype, weights.device) for rope in config.ropes.distinct
        ]
        self._pool = CachePool(
            layers=len(weights.blocks),
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=weights.cache_dtype,
            device=weights.device,
            context=context,
            budget=cache_budget,
            budget_now=budget_now,
        )
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()  # latest used last
        graphs = None if weights.lm_head is None else find_graphs(weights.device)
        self._graphed_head = None if graphs is None else GraphedHead(graphs)
        self._token_step = _find_token_step(weights, self._rotaries)

    @property
    def nbytes(self) -> int:
        """Weights and caches."""
        return self.weights.nbytes + self._pool.nbytes

    @property
    def cache_tokens(self) -> int:
        """How long a session can become here."""
        return self._pool.tokens

    def position(self, session: SessionId) -> int:
        """How many tokens of the session are cached; 0 where it is not known."""
        known = self._sessions.get(session)
        return known.cache.length if known else 0

    @property
    def positions(self) -> dict[SessionId, int]:
        """How many tokens of each session are cached. On the thread that computes."""
        return {name: known.cache.length for name, known in self._sessions.items()}

    def open(self, session: SessionId, *, epoch: int) -> None:
        """Begin a session at position 0; one of the same name is forgotten."""
        self._check_epoch(epoch)
        self._sessions.pop(session, None)
        while len(self._sessions) >= MAX_SESSIONS:
            oldest, _ = self._sessions.popitem(last=False)
            self._pool.close(oldest)
        self._sessions[session] = _Session(self._pool.open(session))

    def close(self, session: SessionId, *, epoch: int) -> None:
        """Forget a session; one that is not known is already forgotten."""
        self._check_epoch(epoch)
        self._sessions.pop(session, None)
        self._pool.close(session)

    def trim(self, session: SessionId, position: int, *, epoch: int) -> None:
        """Forget what is cached from `position` on.

        Raises:
            NeedReplayError: less than that is cached; nothing was changed.
        """
        known = self._find(session, epoch)
        if position > known.cache.length:
            raise _need_replay(known.cache.length, position)
        known.cache.length = position
        known.last = None
        del known.history[position:]

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
            step: its number; the one that was done last is answered from memory.
            position: of the first token.
            prompt_end: where the session will end after the prompt's last chunk; there is room for
                all of it, or the first is refused. None: after these tokens.
            sampling: how the head chooses the next token; None: none is needed.

        Raises:
            StaleEpochError, UnknownSessionError, NeedReplayError: see `potluck.errors`.
            InvalidStepError: the inputs are not what this stage computes on.
            PromptError: a token is not in the vocabulary, or the context is full.
            OutOfMemoryError: there is no room for this step; the stage and its sessions live on.
        """
        known = self._find(session, epoch)
        if not isinstance(inputs, Activations):
            inputs = Activations.of(inputs)
        T = inputs.shape[0] if inputs.shape else 0
        identity = (step, position, T)
        if known.last is not None and known.last[0] == identity:
            return known.last[1]
        self._check_inputs(inputs)
        if position != known.cache.length:
            raise _need_replay(known.cache.length, position)
        end = max(position + T, prompt_end or 0)
        self._check_context(end)
        with out_of_memory(f"compute what follows position {position}", self._device):
            self._reserve(session, end)
            if T == 1 and self._token_step is not None:
                output = self._run_token(self._token_step, inputs, known, position, sampling)
            else:
                output = self._run(inputs.tensor, known, position, sampling)
        known.cache.length = position + T
        known.last = (identity, output)
        return output

    def _run_token(
        self,
        token_step: "TokenStep",
        inputs: Activations,
        known: _Session,
        position: int,
        sampling: Sampling | None,
    ) -> Output:
        """`_run` of one token, without torch."""
        token_step(inputs, known.cache, position)
        if self.weights.lm_head is None:
            return Output(position=position + 1, hidden=token_step.hidden)
        if sampling is None:
            return Output(position=position + 1)
        return self._choose(*self._bend(*token_step.head()), known, position + 1, sampling)

    @torch.inference_mode()
    def _run(
        self, inputs: Tensor, known: _Session, position: int, sampling: Sampling | None
    ) -> Output:
        """All that this stage has. The session's cache is written, its length is not moved."""
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
                # Rounded to the compute dtype, as Gemma was trained.
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
        """Final norm and `lm_head`: (T, D) → (T, V), f32."""
        assert self.weights.norm is not None
        assert self.weights.lm_head is not None
        logits = self.weights.lm_head(self.weights.norm(hidden)).float()
        return self._bend(logits, None)[0]

    def next_logits(self, hidden: Tensor) -> tuple[Tensor, int | None]:
        """Of the last token's hidden states (1, D): (V,), until the next call, and the best if known."""
        if self._token_step is not None:
            return self._bend(*self._token_step.head_of(hidden))
        if self._graphed_head is not None:
            return self._graphed_head(hidden, self.logits)[0], None
        return self.logits(hidden)[0], None

    def _bend(self, logits: Tensor, best: int | None) -> tuple[Tensor, int | None]:
        """As the family has them: small differences may vanish, and the best be the same as others."""
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
            history = self._check_history(sampling.history)
        if best is not None and _is_greedy(sampling):
            choice = Choice(token_id=best)
        else:
            choice = choose(logits, sampling, position=end, history=history)
        if sampling.repetition_penalty != 1.0:
            known.history = [*history, choice.token_id]
        return Output(position=end, choice=choice)

    def _reserve(self, session: SessionId, tokens: int) -> None:
        self._sessions.move_to_end(session)
        for evicted in self._pool.reserve(session, tokens):
            self._sessions[evicted].last = None

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

    def _check_inputs(self, inputs: Activations) -> None:
        config = self.weights.config
        takes_ids = self.weights.embedding is not None
        shape = (
            inputs.shape[0] if inputs.shape else 0,
            *([] if takes_ids else [config.hidden_size]),
        )
        dtypes = _INTEGERS if takes_ids else _FLOATS
        if (
            inputs.shape != shape
            or inputs.dtype not in dtypes
            or not 0 < shape[0] <= MAX_CHUNK_TOKENS
        ):
            wanted = "token ids [T]" if takes_ids else f"hidden states [T, {config.hidden_size}]"
            raise InvalidStepError(
                f"The stage takes {wanted} of 1 to {MAX_CHUNK_TOKENS} tokens, and got"
                f" {list(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')}.",
            )
        if takes_ids:
            if shape[0] == 1:
                self._check_token(inputs.number)
                return
            for bound in inputs.tensor.aminmax():
                self._check_token(int(bound))

    def _check_history(self, history: tuple[int, ...]) -> list[int]:
        for bound in (min(history, default=0), max(history, default=0)):
            self._check_token(bound)
        return list(history)

    def _check_token(self, token: int) -> None:
        vocabulary = self.weights.config.vocab_size
        if not 0 <= token < vocabulary:
            raise PromptError(
                f"The token {token} is not one of the model's {vocabulary}. The prompt was made"
                " with another model's tokenizer.",
                token=token,
            )

    def _check_context(self, tokens: int) -> None:
        if tokens > self.context:
            raise PromptError(
                f"The conversation has {tokens} tokens, and the context holds {self.context}."
                " Begin a new conversation, or load the model with a longer context.",
                tokens=tokens,
                context=self.context,
            )


def _find_token_step(weights: StageWeights, rotaries: Sequence[Rotary]) -> "TokenStep | None":
    if not weights.is_generated:
        return None
    # Not before it is needed, nor where it does not load: it brings llvmlite.
    from potluck.engine.token_step import make_token_step

    return make_token_step(weights, rotaries)


def _is_greedy(sampling: Sampling) -> bool:
    """Whether the largest logit is the choice, and all that is asked for."""
    return (sampling.temperature, sampling.repetition_penalty, sampling.logprobs) == (0, 1, None)


def _need_replay(cached: int, position: int) -> NeedReplayError:
    return NeedReplayError(
        f"The step assumes {position} cached tokens, and {cached} are cached here: send the"
        f" conversation again from position {cached}.",
        position=cached,
    )
