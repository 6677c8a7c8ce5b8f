"""One stage: a contiguous range of decoder layers on one device, and its sessions.

Rules of the file. A step is done whole or not at all: when one fails, the session goes back to where it
was, or to a checkpoint of its states, and the step may be sent again. A step that does not start where the
cache ends is refused with `need_replay`. A session's last step may be repeated: a token that was chosen is
answered from memory, and so are hidden states, if no other step was done since; else they are computed
again. What comes in is untrusted, and checked before anything is computed. Not thread-safe: one thread computes.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from torch import Tensor

from potluck.engine.cache_pool import CachePool
from potluck.engine.disk_work import Disk, at_once
from potluck.engine.forward_pass import ForwardPass
from potluck.engine.head import StageHead
from potluck.engine.memory import out_of_memory
from potluck.engine.payload import Activations
from potluck.engine.ranks import Exchange
from potluck.engine.session import Output, Session, StepTokens, need_replay
from potluck.engine.session_files import SessionFiles
from potluck.engine.session_keeper import SessionKeeper
from potluck.engine.session_transfer import (
    RowReceiver,
    RowSender,
    beyond_one_transfer,
    bytes_apart,
    bytes_moved,
    moved_layers,
)
from potluck.engine.stage_weights import StageWeights
from potluck.engine.step_bounds import StepBounds
from potluck.errors import (
    OutOfMemoryError,
    StaleEpochError,
    UnknownSessionError,
)
from potluck.ids import SessionId
from potluck.model.caches import (
    MAX_CHUNK_TOKENS,
    MOST_MOVED_BYTES,
    WINDOW_SLACK,
    CacheSizes,
)
from potluck.wire.activation_messages import Sampling

logger = logging.getLogger(__name__)

MAX_SESSIONS = 1024  # known sessions; how many of them are cached depends on the budget


Together: TypeAlias = Callable[[Sequence[StepTokens]], AbstractContextManager[object]]


def alone(steps: Sequence[StepTokens]) -> AbstractContextManager[object]:
    """Compute steps without other ranks: the `together` of a stage that has whole layers."""
    return nullcontext()


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
        files: SessionFiles | None = None,
        disk: Disk = at_once,
        exchange: Exchange | None = None,
        together: Together = alone,
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
        """
        config = weights.config
        self.weights = weights
        self.context = context
        self.epoch = epoch
        self._bounds = StepBounds(
            vocabulary=config.vocab_size,
            hidden=None if weights.embedding is not None else config.width,
            follows=weights.follows,
            chunk=chunk,
            context=context,
            needs_ids=config.needs_ids(weights.layers),
            deep=config.deep_numbers(weights.layers[0]) if weights.layers else 0,
        )
        self._max_sessions = max_sessions
        # A prompt goes on from any token only where it does not matter how tokens are cut into steps.
        files = files if weights.is_exact_in_chunks else None
        self._device = weights.device
        sizes = CacheSizes(number_bytes=weights.cache_dtype.itemsize, chunk=chunk, slack=slack)
        self.caches = tuple(block.spec.cache(sizes) for block in weights.blocks)
        self._stretches = config.stretches
        self._pool = CachePool(
            self.caches,
            dtype=weights.cache_dtype,
            device=weights.device,
            context=context,
            budget=cache_budget,
            budget_now=budget_now,
            shares=weights.has_generated_mixers,
        )
        self.keeper = SessionKeeper(files, self._pool, disk)
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()  # latest used last
        self._holder: Session | None = None  # the session whose hidden states are kept
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

    @property
    def cache_tokens(self) -> int:
        """The most tokens that a session can have here."""
        return self._pool.tokens

    def position(self, session: SessionId) -> int:
        """How many tokens of the session are cached; 0 if it is not known."""
        known = self._sessions.get(session)
        return known.cache.length if known else 0

    def open(
        self,
        session: SessionId,
        *,
        epoch: int,
        source: SessionId | None = None,
        position: int = 0,
    ) -> None:
        """Begin a session. One of the same name is forgotten.

        Args:
            session: its name.
            epoch: of the plan in force.
            source: a session that begins with the same tokens. None: there is none.
            position: how many of its tokens to begin with. Fewer are taken, down to none, if less is cached,
                or if a layer cannot go on from there (see `trim`). The next step is then answered with
                `need_replay`. So is that of the source if there was no room for both.
        """
        self.close(session, epoch=epoch)
        if source is not None and source in self._sessions:
            self._sessions.move_to_end(source)
        while len(self._sessions) >= self._max_sessions:
            self.close(next(iter(self._sessions)), epoch=epoch)
        self._sessions[session] = Session(self._pool.open(session))
        if source is not None and source in self._sessions:
            self._fork(session, source, position)

    def _fork(self, session: SessionId, source: SessionId, position: int) -> None:
        try:
            with out_of_memory("copy the beginning of a conversation", self._device):
                evicted = self._pool.fork(session, source, position)
        except OutOfMemoryError as error:
            logger.info("the beginning of a conversation is computed again: %s", error)
            self._sessions[session].cache = self._pool.open(session)
            return
        self._forget(evicted)

    def close(self, session: SessionId, *, epoch: int) -> None:
        """Forget a session. One that is not known is already forgotten."""
        self._check_epoch(epoch)
        if (known := self._sessions.pop(session, None)) is not None:
            self._forget_last(known)
            self._pool.close(session, keeps=self.keeper.wants(known.cache))
            self.keeper.look()

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
            raise need_replay(known.cache.length, position)
        self._trim(known, position)

    def keep(self, session: SessionId, prefix: bytes, *, epoch: int) -> None:
        """Note the digests of a session's first tokens: it can be kept on disk under them."""
        self._find(session, epoch).cache.name(prefix)
        self.keeper.look()

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

    def send_rows(
        self, session: SessionId, layers: range, position: int, end: int, *, epoch: int
    ) -> RowSender:
        """Read a session's cache from `position` to `end`, in these of the stage's layers, as it is computed."""
        cache = self._find(session, epoch).cache
        moved = moved_layers(cache, self.caches, self.weights.layers)
        wanted = {number: layer for number, layer in moved.items() if number in layers}
        return RowSender(cache, wanted, position, end)

    def expect_rows(
        self, session: SessionId, position: int, end: int, *, epoch: int
    ) -> RowReceiver:
        """Make room for tokens of a session that others compute, and one more. They count as cached once all are here.

        Raises:
            NeedReplayError: another number of tokens is cached than before `position`.
            PromptError: the context has no room for them.
            OutOfMemoryError: the memory has none, or their cache is larger than what is moved at once.
        """
        known = self._find(session, epoch)
        cache = known.cache
        if position != cache.length:
            raise need_replay(cache.length, position)
        self._bounds.check_context(end + 1)
        moved = bytes_moved(self.caches, position, end)
        if moved > MOST_MOVED_BYTES:
            raise beyond_one_transfer(moved)
        self._choose_rope(known, position, end + 1)
        with out_of_memory("receive a conversation's cache", self._device):
            self._reserve(session, end + 1)
            self._forget(self._pool.make_room(session, bytes_apart(self.caches, position, end)))
            layers = moved_layers(cache, self.caches, self.weights.layers)
            rows = RowReceiver(cache, layers, position, end)
        self._forget_last(known)
        return rows

    def restore(
        self,
        session: SessionId,
        prefix: bytes,
        most: int,
        *,
        epoch: int,
        done: Callable[[int], object],
    ) -> None:
        """Let an empty session begin with tokens that are kept on disk.

        Until `done` is called, no step of the session may be done.

        Args:
            session: one that was opened.
            prefix: the digests of the tokens to come.
            most: tokens that are of use.
            epoch: of the plan in force.
            done: called with how many tokens it has then. 0: nothing is kept that pays, or it could not be read.
        """
        known = self._find(session, epoch)
        cache = known.cache

        def is_open() -> bool:
            return self._sessions.get(session) is known and known.cache is cache

        def has_room(tokens: int) -> bool:
            if is_open():
                self._reserve(session, tokens)
            return is_open()

        def restored(is_whole: bool | None) -> None:
            if not is_whole and is_open():  # the disk may still be read into this cache
                known.cache = self._pool.open(session)
            done(known.cache.length)

        # The session will have at least one token more: its last one is always computed.
        cache.stretch = self._stretches.at(most + 1)
        self.keeper.restore(cache, prefix, most, has_room, restored)

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
        if is_repeated:
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

    def _choose_rope(self, known: Session, position: int, end: int) -> None:
        """Choose the rotary frequencies of an empty session that will have so many tokens.

        Raises:
            NeedReplayError: the session grows beyond those that its tokens were computed with.
        """
        stretch = self._stretches.at(end)
        if not known.cache.length:
            known.cache.stretch = stretch
        elif stretch > known.cache.stretch:
            self._trim(known, 0)
            raise need_replay(0, position)

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

    def _forget_last(self, known: Session) -> None:
        known.last = known.output = None
        if self._holder is known:
            self._holder = None

    def _trim(self, known: Session, position: int) -> None:
        known.cache.trim(position)
        self._forget_last(known)
        del known.history[known.cache.length :]

    def _reserve(self, session: SessionId, tokens: int) -> None:
        self._sessions.move_to_end(session)
        self._forget(self._pool.reserve(session, tokens))

    def _forget(self, evicted: Iterable[SessionId]) -> None:
        """Note that these sessions have lost their caches."""
        for session in evicted:
            self._forget_last(self._sessions[session])

    def _find(self, session: SessionId, epoch: int) -> Session:
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
