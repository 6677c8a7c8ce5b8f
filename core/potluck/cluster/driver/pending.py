"""The steps that a driver waits for, and which token goes into the next one."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from potluck.cluster.driver.drafts import Drafts, StepCosts
from potluck.errors import EngineError
from potluck.ids import SessionId
from potluck.wire.activation_messages import Result, Sampling, Scoring, StepPictures


@dataclass(frozen=True, slots=True)
class StepResult:
    """The last stage's answer to a step, and how long it took."""

    result: Result
    seconds: float  # since the step was sent


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that was sent, or that will be sent when the result of the step before it arrives.

    Attributes:
        future: the result, or the error that ended this step or the pipeline.
        prompt_end: position where the prompt ends, if this is one of its chunks but the last.
        scoring: the tokens of the prompt whose log-probabilities are asked for.
        sent: time at which it was sent; None: it was not sent yet.
        token: the chosen token that was sent with it; None: it was not sent yet, or it is a chunk.
        stops: token ids that end the answer. The step is not sent if it would carry one of them.
        pictures: what it says of pictures; None: nothing.
        is_for_others: whether the stages wait for others in it, and compute nothing.
        guessing: guesses at the tokens after its own; None: nobody does.
        end: with guesses, where the caches may end at most. The step is not sent if its token does not fit.
        position: of the token that was sent with it.
        drafts: the guesses that were sent with it.
    """

    session: SessionId
    step: int
    future: "asyncio.Future[StepResult]"
    sampling: Sampling | None
    prompt_end: int | None = None
    scoring: Scoring | None = None
    sent: float | None = None
    token: int | None = None
    stops: Collection[int] = ()
    pictures: StepPictures | None = None
    is_for_others: bool = False
    guessing: Drafts | None = None
    end: int = 0
    position: int = 0
    drafts: tuple[int, ...] = ()

    def check(self, result: Result) -> None:
        """Raise EngineError if a result has tokens that were not guessed."""
        count = len(result.accepted)
        ids = tuple(chosen.token_id for chosen in result.accepted)
        is_end = not self.drafts or result.position == self.position + 1 + count
        if ids != self.drafts[:count] or not is_end:
            raise EngineError(
                "The last computer of the pipeline answered with tokens that it was not asked for. Its Potluck may"
                " be damaged or altered: leave it out, or install it again."
            )

    def seconds(self, now: float) -> float:
        """How long ago it was sent."""
        assert self.sent is not None
        return now - self.sent


class PendingSteps:
    """The steps of one pipeline that have no result yet. Its lock guards them.

    A step may be added before its token is known. It is fed with the token of the result before it, and is
    then to be sent.
    """

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._steps: dict[tuple[str, int], PendingStep] = {}
        # The last result of each session, until the step that follows it is asked for.
        self._unfollowed: dict[str, Result] = {}
        self._fed: list[tuple[PendingStep, int]] = []  # with their positions
        self.feeds = True  # whether results feed the steps that follow

    def add(self, step: PendingStep) -> None:
        """Wait for the result of a step that is sent now."""
        self._unfollowed.pop(step.session, None)
        self._steps[step.session, step.step] = step

    def follow(self, step: PendingStep, now: float) -> bool:
        """Wait for the result of a step that is fed by the result of the step before it.

        Returns:
            Whether that result is here, so that this step was fed now.
        """
        self._steps[step.session, step.step] = step
        before = self._unfollowed.get(step.session)
        if before is None or before.step != step.step - 1:
            return False
        del self._unfollowed[step.session]
        self._feed(step, before, now)
        return True

    def take(self, result: Result, now: float) -> PendingStep | None:
        """End the wait for a result, and feed the step that follows.

        Returns:
            The step whose result it is; None: nobody waits for it.

        Raises:
            EngineError: it cannot be the result of this step.
        """
        step = self._steps.get((result.session, result.step))
        if step is None or step.sent is None:
            return None
        step.check(result)
        del self._steps[result.session, result.step]
        following = self._steps.get((result.session, result.step + 1))
        if following is not None and following.sent is None:
            self._feed(following, result, now)
        else:
            self._unfollowed[result.session] = result
        return step

    def take_fed(self) -> list[tuple[PendingStep, int]]:
        """The steps that are to be sent now, with their positions."""
        fed, self._fed = self._fed, []
        return fed

    def remove(self, session: str, step: int) -> PendingStep | None:
        """Wait for a step no more. None: nobody did."""
        return self._steps.pop((session, step), None)

    def remove_all(self) -> Sequence[PendingStep]:
        steps, self._steps = self._steps, {}
        return tuple(steps.values())

    def forget(self, session: str) -> None:
        """No step follows the last result of a session."""
        self._unfollowed.pop(session, None)

    def are_of(self, session: str) -> bool:
        """Whether no other session has a step."""
        return all(other == session for other, _ in self._steps)

    def first_sent(self) -> float | None:
        """When the oldest step was sent that the stages compute; None: none was."""
        steps = (step for step in self._steps.values() if not step.is_for_others)
        times = [step.sent for step in steps if step.sent is not None]
        return min(times) if times else None

    def _feed(self, step: PendingStep, result: Result, now: float) -> None:
        """Have the token of a result sent with the next ones, unless it ends the answer."""
        if not self.feeds or (token := result.token_id) is None or token in step.stops:
            return
        if step.guessing is not None:
            if result.position >= step.end:
                return
            step.drafts = self._guess(step, step.guessing, result)
        step.token, step.position, step.sent = token, result.position, now
        self._fed.append((step, result.position))

    def _guess(self, step: PendingStep, guessing: Drafts, result: Result) -> tuple[int, ...]:
        """What may follow the token of a result.

        Nothing beside other sessions: their tokens are computed together with this one, and each costs what a guess does.
        """
        assert result.token_id is not None
        chosen = (*(one.token_id for one in result.accepted), result.token_id)
        guessing.go_on(result.position - len(result.accepted), chosen)
        room = step.end - result.position - 1
        return guessing.next(room if self.are_of(step.session) else 0, self.costs, step.stops)
