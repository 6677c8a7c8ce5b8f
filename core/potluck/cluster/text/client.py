"""The node's side of a text process: what a model's files make of text, and what they may cost."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from potluck.api.prompts import Constraint
from potluck.cluster.driver.model_text import Conversation, EncodedPrompt
from potluck.cluster.text.grammars import Grammar, Grammars
from potluck.cluster.text.limited import LimitedProcess
from potluck.cluster.text.messages import (
    EncodeChat,
    Encoded,
    EncodeFill,
    EncodeText,
    ModelOpened,
    OpenModel,
    decode_from_text,
)
from potluck.errors import BrokenModelError, PotluckError, PromptError
from potluck.model.answers.format import AnswerFormat
from potluck.model.text.detokenizer import Vocabulary

logger = logging.getLogger(__name__)

# One thread, whose work is over when a request is: an idle process takes no time, and less memory.
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimits:
    """What a model's tokenizer and template may cost.

    The largest published tokenizers take 0.6 GB and some seconds to read on a slow computer.
    """

    memory: int = 2 << 30  # bytes
    open_s: float = 60.0
    encode_s: float = 20.0


class ModelText:
    """The words of one model: text becomes token ids in a process of its own.

    The process is started when it is first needed, and again when it had to be ended. A request
    waits for those before it. Token ids become text here, by the vocabulary.

    Attributes:
        folder: of the model's tokenizer and chat template.
        vocabulary, stop_ids, stop_strings, answers: as in `ChatFormat`; known once the model is open.
    """

    def __init__(self, folder: Path, log_path: Path, limits: TextLimits | None = None) -> None:
        """Use `open_text`."""
        self.folder = folder
        self.vocabulary: Vocabulary
        self.answers: AnswerFormat
        self.stop_ids: frozenset[int] = frozenset()
        self.stop_strings: tuple[str, ...] = ()
        self._log_path = log_path
        self._limits = limits or TextLimits()
        self._turns = asyncio.Lock()
        self._sees = False  # whether the request under way has pictures
        self._process = LimitedProcess(
            "potluck.cluster.text.process",
            log_path,
            memory=self._limits.memory,
            environment=_ENVIRONMENT,
            decode=decode_from_text,
            exceeded=self._exceeded,
        )
        self._grammars = Grammars(folder, log_path.with_stem(f"{log_path.stem}-grammars"))

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """The token ids of a text, with those of the model for its beginning.

        Raises:
            BrokenModelError: the tokenizer fails, or exceeds its limits.
        """
        return (await self._encode(EncodeText(text=text, add_special=add_special))).token_ids

    async def encode_fill(self, before: str, after: str) -> list[int]:
        """The token ids after which the model writes what belongs between two texts.

        Raises:
            PromptError: the model did not learn to.
            BrokenModelError: the tokenizer fails, or exceeds its limits.
        """
        return (await self._encode(EncodeFill(before=before, after=after))).token_ids

    async def encode_chat(self, conversation: Conversation) -> EncodedPrompt:
        """The token ids of a conversation, up to where the answer begins.

        Raises:
            PromptError: the conversation is malformed, or the model's template refuses it.
            BrokenModelError: tokenizer or template fail, or exceed their limits.
        """
        return await self._encode(EncodeChat(conversation=conversation))

    async def constrain(self, constraint: Constraint, vocab_size: int) -> Grammar:
        """Begin the grammar of an answer, in another process of its own.

        Args:
            constraint: what the answer has to be.
            vocab_size: token ids that the model's weights know.

        Raises:
            GrammarError: the constraint is invalid, too large, or uses what is not supported.
            BrokenModelError: the tokenizer cannot be used.
        """
        return await self._grammars.open(constraint, vocab_size)

    async def open(self) -> None:
        """Start the process, and read the model's files.

        Raises:
            BrokenModelError: a file is missing or unreadable, or reading it exceeds the limits.
        """
        async with self._turns:
            await self._start()

    async def close(self) -> None:
        """End the process, and the request under way with an error. No other one is started."""
        await self._process.close()
        await self._grammars.close()

    async def _encode(self, request: EncodeText | EncodeFill | EncodeChat) -> EncodedPrompt:
        async with self._turns:
            if not self._process.is_running:
                await self._start()
            self._sees = isinstance(request, EncodeChat) and bool(request.conversation.pictures)
            answer = await self._process.ask(request, self._limits.encode_s)
        assert isinstance(answer, Encoded)
        return answer.prompt

    async def _start(self) -> None:
        self._sees = False
        await self._process.start()
        limits = self._limits
        request = OpenModel(
            folder=str(self.folder),
            memory=limits.memory,
            open_s=limits.open_s,
            encode_s=limits.encode_s,
        )
        try:
            opened = await self._process.ask(request, limits.open_s)
        except BrokenModelError:
            await self._process.stop()
            raise
        assert isinstance(opened, ModelOpened)
        self.vocabulary = opened.vocabulary
        self.stop_ids, self.stop_strings = opened.stop_ids, opened.stop_strings
        self.answers = opened.answers

    def _exceeded(self, what: str) -> PotluckError:
        if self._sees:
            logger.error("a text process was ended by a picture: it %s", what)
            return PromptError(
                f"Reading the pictures of the prompt {what}, and was stopped. Save them as PNG or JPEG, smaller,"
                " and send them again."
            )
        logger.error("a text process was ended model=%s: it %s", self.folder, what)
        return BrokenModelError(
            f"The tokenizer or the chat template of {self.folder.name} {what}, and was stopped."
            " The model's files are broken, or made to do harm: use another model, or download it"
            f" again from a source that you trust. The log is {self._log_path}.",
            folder=str(self.folder),
        )


async def open_text(folder: Path, log_path: Path, limits: TextLimits | None = None) -> ModelText:
    """Read the tokenizer and the chat template of a model's folder, in a process of their own.

    Args:
        folder: of the model.
        log_path: the file that takes what the process has to say.
        limits: of the process.

    Raises:
        BrokenModelError: a file is missing or unreadable, or reading it exceeds the limits.
    """
    text = ModelText(folder, log_path, limits)
    await text.open()
    return text
