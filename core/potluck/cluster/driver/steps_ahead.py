"""Steps that are asked for before it is known which tokens they carry."""

from collections import deque

from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.pending import PendingStep, StepResult


class StepsAhead:
    """The steps that follow a token, asked for before it is known which tokens they carry."""

    def __init__(self, conversation: Conversation, most: int) -> None:
        self.conversation = conversation
        self._most = most
        self._steps: deque[PendingStep] = deque()

    @property
    def is_asked(self) -> bool:
        """Whether there is a next step."""
        return bool(self._steps)

    def ask(self, left: int) -> None:
        """Ask for the next steps, at most so many. A grammar allows tokens for one step at a time."""
        most = self._most if self.conversation.grammar is None else 1
        left = min(left, self.conversation.steps_left)
        while len(self._steps) < min(most, left):
            self._steps.append(self.conversation.follow())

    async def next(self) -> StepResult:
        """The result of the next step, which has the next token."""
        step = self._steps[0]
        arrived = await step.future
        self._steps.popleft()
        self.conversation.token_came()
        return arrived

    def give_up(self) -> list[int]:
        """Forget the steps; return the tokens that were sent with them already."""
        steps = list(self._steps)
        self._steps.clear()
        for step in steps:
            self.conversation.give_up(step)
        return [step.token for step in steps if step.token is not None]

    def stop(self) -> None:
        """Forget the steps at the end of the answer; their tokens will be in the caches."""
        if sent := self.give_up():
            self.conversation.sent_ahead(sent)
