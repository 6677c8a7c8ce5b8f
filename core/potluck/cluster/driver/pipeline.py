"""What a driver asks of a chain of stages: steps enter the first, results leave the last (`chain_ends.py`).

Every message enters at the first stage, and the stages handle messages in order, so a trim always
takes effect after the steps that were sent before it. A stage reports a step that it cannot do over
the control connection, because the chain itself may be what broke.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from potluck.cluster.driver.chain_ends import SILENCE_S, ActivationLink, ChainEnds
from potluck.cluster.driver.drafts import Drafts
from potluck.cluster.driver.pending import PendingStep, StepResult
from potluck.errors import (
    PeerLostError,
)
from potluck.ids import SessionId
from potluck.model.mixing.rope import Stretches
from potluck.wire.activation_messages import (
    CloseSession,
    KeepSession,
    OpenSession,
    RestoreSession,
    Sampling,
    Scoring,
    StepPictures,
    TrimSession,
)
from potluck.wire.cache_messages import ExpectCache, ForgetBefore, SendCache, TakeCache
from potluck.wire.messages import Message
from potluck.wire.picture_messages import GiveRows, ShowPicture

_ROWS_AS_CHUNK = 512  # of a picture, which the slowest computer reads in `SILENCE_S`

_ONE_STRETCH = Stretches()  # of most models


class Pipeline(ChainEnds):
    """The stages of one plan, as their driver sees them.

    A chosen token is sent back in by the thread that received it, before the event loop sees it, if
    the step that follows was asked for: see `follow`.

    No method raises an error of a stage or of a connection: a step fails at its `future`. A
    pipeline that is broken stays broken. A `Generator` then goes on with another one.

    Attributes:
        times: how long the tokens take that it computes.
        sent_tokens: how many tokens the stages were given to compute.
    """

    def __init__(
        self,
        *,
        epoch: int,
        first: ActivationLink,
        last: ActivationLink,
        stages: int,
        is_exact_in_chunks: bool = False,
        keeps_sessions: bool = False,
        takes_drafts: bool = False,
        stretches: Stretches = _ONE_STRETCH,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make a pipeline; `run` starts it.

        Args:
            epoch: number of the plan.
            first: connection to the first stage.
            last: connection to the last stage; the same one where that is the first stage.
            stages: how many there are.
            is_exact_in_chunks: whether results have the same bits however tokens are cut into
                steps. Else only the same steps give the same answer again.
            keeps_sessions: whether all stages keep caches on disk.
            takes_drafts: whether all stages compute guesses at tokens, and forget the wrong ones.
            stretches: which rotary frequencies the model has for a session of some length.
            silence_s: the pipeline breaks when nothing is heard of it for so long, although steps
                are under way the whole time.
            clock: seconds.
        """
        super().__init__(
            epoch=epoch, first=first, last=last, stages=stages, silence_s=silence_s, clock=clock
        )
        self.is_exact_in_chunks = is_exact_in_chunks
        self.keeps_sessions = keeps_sessions
        self.takes_drafts = takes_drafts
        self.stretches = stretches

    def open(
        self, session: SessionId, *, source: SessionId | None = None, position: int = 0
    ) -> None:
        """Make caches for the session, in place of those that it has.

        Args:
            session: whose caches.
            source: a session with which it shares its beginning. None: they are empty.
            position: how many tokens of `source` they hold. All stages must have computed these.
        """
        message = OpenSession(epoch=self.epoch, session=session, source=source, position=position)
        self._send(message)

    def trim(self, session: SessionId, position: int) -> None:
        """Have every stage forget what it has cached from this position on."""
        self._send(TrimSession(epoch=self.epoch, session=session, position=position))

    def close(self, session: SessionId) -> None:
        """Free the session's caches."""
        with self._lock:
            self._steps.forget(session)
        self._send(CloseSession(epoch=self.epoch, session=session))

    def keep(self, session: SessionId, prefix: bytes) -> None:
        """Tell the stages the digests of the tokens that are in the caches, which can then be kept on disk."""
        self._send(KeepSession(epoch=self.epoch, session=session, prefix=prefix))

    def ask(self, message: RestoreSession | ExpectCache | TakeCache) -> PendingStep:
        """Send what all stages do one after the other, and what the last one answers as it answers a step.

        Returns:
            A step whose result has the position that all stages have reached. Some may be beyond it.
        """
        pending = self._new_step(SessionId(message.session), message.step, None)
        pending.is_for_others = isinstance(message, TakeCache)
        if self._broken is None:
            with self._lock:
                pending.sent = None if self.is_draining else self._clock()
                self._steps.add(pending)
            self._send(message)
        return pending

    def tell(self, message: SendCache | ForgetBefore) -> None:
        """Send what no stage answers."""
        self._send(message)

    def _send(self, message: Message, payload: bytes = b"") -> None:
        if self.sends:
            with self._lock, suppress(PeerLostError):  # `run` notices it too
                self._send_fed()  # which were before it
                self._first.send_nowait(message, payload)

    def send_picture(
        self, message: ShowPicture | GiveRows, payload: bytes, *, rows: int = 0
    ) -> None:
        """Send what a later step needs of a picture to the first stage, whose tower makes so many rows of it."""
        self._send(message, payload)
        self.reads_picture(rows)

    def reads_picture(self, rows: int) -> None:
        """Note that a stage makes so many rows of a picture: it is silent meanwhile."""
        # The slowest computer reads a large picture for longer than a chunk.
        longer = self._silence_s * max(0.0, rows / _ROWS_AS_CHUNK - 1)
        self._heard = max(self._heard, self._clock() + longer)

    def start_step(
        self,
        session: SessionId,
        *,
        step: int,
        position: int,
        tokens: Sequence[int],
        prompt_end: int | None = None,
        sampling: Sampling | None,
        scoring: Scoring | None = None,
        pictures: StepPictures | None = None,
    ) -> PendingStep:
        """Send tokens to the first stage.

        Args:
            session: whose caches they go into.
            step: number of the step, which is greater than that of every step before.
            position: of the first of the tokens in the session.
            tokens: one chunk of a prompt, or one token.
            prompt_end: position where the prompt ends; None: these tokens are its end.
            sampling: how the token after them is chosen; None: no token is needed.
            scoring: the tokens after them whose log-probabilities are needed; None: of none.
            pictures: which of them are rows of pictures; None: none, nor any before them.
        """
        pending = self._new_step(session, step, sampling)
        pending.prompt_end, pending.scoring, pending.pictures = prompt_end, scoring, pictures
        if self._broken is not None:
            return pending
        with self._lock:
            self._forward(pending, position, tokens)
            self._steps.add(pending)
        return pending

    def follow(
        self,
        session: SessionId,
        *,
        step: int,
        sampling: Sampling,
        stops: Collection[int] = (),
        pictures: StepPictures | None = None,
        guessing: Drafts | None = None,
        end: int = 0,
    ) -> PendingStep:
        """Have the token that the step before chooses sent back in, as soon as it arrives.

        Args:
            session: the session of the step before.
            step: number of this step, which is one more than that of the step before.
            sampling: how the next token is chosen.
            stops: token ids that end the answer.
            pictures: where rope counts its token behind pictures.
            guessing: guesses at the tokens after it, which are sent with it; None: nobody does.
            end: with guesses, where the caches may end at most.
        """
        pending = self._new_step(session, step, sampling)
        pending.stops, pending.pictures = stops, pictures
        pending.guessing, pending.end = guessing, end
        if self._broken is not None:
            return pending
        with self._lock:
            if self._steps.follow(pending, self._clock()):
                self._send_fed()
        return pending

    def give_up(self, step: PendingStep) -> None:
        """Forget a step. It is not sent any more, if it was not yet: see its `token`."""
        with self._lock:
            self._steps.remove(step.session, step.step)
        step.future.add_done_callback(_ignore)
        step.future.cancel()
        self._ended.set()

    def _new_step(self, session: SessionId, step: int, sampling: Sampling | None) -> PendingStep:
        pending = PendingStep(session, step, self._loop.create_future(), sampling)
        if self._broken is not None:
            pending.future.set_exception(self._broken)
        return pending


def _ignore(future: "asyncio.Future[StepResult]") -> None:
    if not future.cancelled():
        future.exception()
