"""The node's side of a grammar process: which tokens may come next in each constrained answer.

A grammar's state is a function of the answer's tokens. So a process that had to be ended costs only the answer
that it was working for: the others begin again in the next process with the tokens that they have.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.api.prompts import Constraint
from potluck.cluster.text.grammar_messages import (
    Allowed,
    OpenGrammar,
    OpenVocabulary,
    PushTokens,
    decode_from_grammar,
)
from potluck.cluster.text.limited import LimitedProcess
from potluck.errors import BrokenModelError, GrammarError

logger = logging.getLogger(__name__)

MAX_TEXT = 1 << 18  # characters of a schema or grammar; the largest in use have some 50,000
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """What grammars may cost. A usual schema takes some milliseconds to open, and a step microseconds."""

    memory: int = 2 << 30  # bytes, of all grammars and the vocabulary
    vocabulary_s: float = 60.0
    open_s: float = 10.0
    step_s: float = 5.0


class Grammar:
    """The grammar of one answer.

    Attributes:
        allowed: the tokens that may come next, as in `Sampling.allowed`.
        is_over: whether the text is complete and nothing may follow.
    """

    def __init__(self, grammars: "Grammars", number: int, constraint: Constraint) -> None:
        """Use `Grammars.open`."""
        self.allowed: bytes | tuple[int, ...] | None = None
        self.is_over = False
        self.number, self.constraint = number, constraint
        self.tokens: list[int] = []
        self.process = 0  # the number of the process that has its state; 0: none has
        self._grammars = grammars

    async def push(self, tokens: Sequence[int]) -> None:
        """Take the next tokens of the answer.

        Raises:
            GrammarError: the process took too long or too much memory for it.
            EngineError: a token is not allowed.
        """
        self.tokens += tokens
        answer = await self._grammars.follow(self, tokens)
        self.allowed, self.is_over = answer.tokens, answer.is_over

    def close(self) -> None:
        """Forget it."""
        self._grammars.forget(self)


class Grammars:
    """Those of one model's answers. The process is started when the first is opened."""

    def __init__(self, folder: Path, log_path: Path, limits: GrammarLimits | None = None) -> None:
        """`folder` is that of the model's tokenizer; `log_path` takes what the process has to say."""
        self._folder = folder
        self._limits = limits or GrammarLimits()
        self._process = LimitedProcess(
            "potluck.cluster.text.grammar_process",
            log_path,
            memory=self._limits.memory,
            environment=_ENVIRONMENT,
            decode=decode_from_grammar,
            exceeded=_exceeded,
        )
        self._turns = asyncio.Lock()
        self._vocab_size = 0
        self._started = 0  # so many processes were
        self._closed: list[int] = []
        self._numbers = itertools.count(1)

    async def open(self, constraint: Constraint, vocab_size: int) -> Grammar:
        """Begin a grammar.

        Args:
            constraint: what it allows.
            vocab_size: token ids that the model's weights know.

        Raises:
            GrammarError: it is invalid, too large, or uses what is not supported.
            BrokenModelError: the model's tokenizer cannot be used.
        """
        if len(constraint.text) > MAX_TEXT:
            raise GrammarError(
                f"{constraint.field}: it has {len(constraint.text)} characters, and {MAX_TEXT} are"
                " the most. Simplify it.",
                param=constraint.field,
            )
        self._vocab_size = vocab_size
        grammar = Grammar(self, next(self._numbers), constraint)
        await grammar.push(())
        return grammar

    async def follow(self, grammar: Grammar, tokens: Sequence[int]) -> Allowed:
        """Tell the process the next tokens of an answer; if it does not know the answer, all of them.

        Raises:
            GrammarError: it took too long or too much memory for that.
            EngineError: a token is not allowed.
        """
        # Who is cancelled does not end the process, which works for other answers as well.
        asking = asyncio.ensure_future(self._follow(grammar, tokens))
        asking.add_done_callback(_ignore)
        return await asyncio.shield(asking)

    async def _follow(self, grammar: Grammar, tokens: Sequence[int]) -> Allowed:
        async with self._turns:
            if not self._process.is_running:
                await self._start()
            if grammar.process == self._started:
                request = PushTokens(grammar=grammar.number, tokens=list(tokens))
                answer = await self._process.ask(request, self._limits.step_s)
            else:
                closed, self._closed = self._closed, []
                request = OpenGrammar(
                    grammar=grammar.number,
                    constraint=grammar.constraint,
                    tokens=grammar.tokens,
                    closed=closed,
                )
                answer = await self._process.ask(request, self._limits.open_s)
                grammar.process = self._started
        assert isinstance(answer, Allowed)
        return answer

    def forget(self, grammar: Grammar) -> None:
        """Have the process forget a grammar when the next one is opened."""
        self._closed.append(grammar.number)

    async def close(self) -> None:
        """End the process, and the requests under way with an error."""
        await self._process.close()

    async def _start(self) -> None:
        await self._process.start()
        self._started += 1
        request = OpenVocabulary(
            folder=str(self._folder),
            vocab_size=self._vocab_size,
            memory=self._limits.memory,
            vocabulary_s=self._limits.vocabulary_s,
            open_s=self._limits.open_s,
            step_s=self._limits.step_s,
        )
        try:
            await self._process.ask(request, self._limits.vocabulary_s)
        except BrokenModelError:
            await self._process.stop()
            raise


def _exceeded(what: str) -> GrammarError:
    logger.error("a grammar process was ended: it %s", what)
    return GrammarError(f"The schema or grammar of an answer {what}, and was stopped. Simplify it.")


def _ignore(asked: "asyncio.Future[Allowed]") -> None:
    if not asked.cancelled():
        asked.exception()
