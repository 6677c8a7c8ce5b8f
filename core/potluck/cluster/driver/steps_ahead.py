"""Steps that are asked for before it is known which tokens they carry."""

from collections import deque
from itertools import zip_longest

from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.token import Token, tokens_of


class StepsAhead:
    """The steps that follow a token, asked for before it is known which tokens they carry.

    A step with guesses may have several tokens as its result, which are taken one after the other.
    """

    def __init__(self, conversation: Conversation, most: int) -> None:
        self.conversation = conversation
        self._most = most
        self._steps: deque[PendingStep] = deque()
        self._arrived: deque[Token] = deque()  # of one step; all but the last are cached

    @property
    def is_asked(self) -> bool:
        """Whether there is a next token."""
        return bool(self._arrived or self._steps)

    def ask(self, left: int) -> None:
        """Ask for the next steps, at most so many. A grammar allows tokens for one step at a time."""
        if not self.is_asked:
            self.conversation.begin_guessing()
        most = self._most if self.conversation.grammar is None else 1
        left = min(left, self.conversation.steps_left)
        wanted = max(0, min(most, left - len(self._arrived)))
        while len(self._steps) < wanted:
            self._steps.append(self.conversation.follow(left))
        while (
            len(self._steps) > wanted
        ):  # those before it had more tokens than one: it is never sent
            self.conversation.give_up(self._steps.pop())

    async def next(self) -> Token:
        """The next token."""
        if not self._arrived:
            arrived = await self._steps[0].future
            self._steps.popleft()
            self._arrived.extend(tokens_of(arrived.result, arrived.seconds))
        self.conversation.token_came()
        return self._arrived.popleft()

    def give_up(self) -> None:
        """Forget the steps, after one that failed."""
        self._forget()

    def stop(self) -> None:
        """Forget the steps at the end of the answer; their tokens will be in the caches."""
        given, arrived = self.conversation.tokens[-1:], [token.token_id for token in self._arrived]
        known = [*given, *arrived][:-1]
        steps = self._forget()
        for step, following in zip_longest(steps, steps[1:]):
            assert step.token is not None
            right = 0 if following is None else following.position - step.position - 1
            known += (step.token, *step.drafts[:right])
        if known:
            self.conversation.sent_ahead(known)
        if steps and steps[-1].drafts:
            self.conversation.forget_guesses()

    def _forget(self) -> list[PendingStep]:
        """Forget the steps; return those that were sent already."""
        steps = list(self._steps)
        self._steps.clear()
        self._arrived.clear()
        for step in steps:
            self.conversation.give_up(step)
        return [step for step in steps if step.token is not None]
