"""A loaded model that says what a test says, with a tokenizer whose tokens are bytes."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
from fake_chain import FakeChain
from fake_cluster import run
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from potluck.api.events import Piece, Reading
from potluck.api.prompts import Constraint, GenerationRequest
from potluck.cluster.driver.completion import complete
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.loaded_model import LoadedModel
from potluck.cluster.driver.model_text import Conversation, EncodedPrompt
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.text.grammar_process import Grammar, TokenSets
from potluck.cluster.text.process import encode_conversation
from potluck.model.defaults import GenerationDefaults
from potluck.model.text.chat import ChatFormat
from potluck.model.text.fill import encode_fill
from potluck.wire.activation_messages import Result, TokenLogprob
from potluck.wire.messages import Message

EOS = 257
BYTES = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def chat_format(folder: Path, **settings: str) -> ChatFormat:
    tokenizer = Tokenizer(models.BPE(vocab=BYTES, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"} | settings))
    return ChatFormat.load(folder)


class Writer(FakeChain):
    """A chain that answers with these token ids, one after the other."""

    def __init__(self, script: Sequence[int | None], *, compute_ms: tuple[float, ...] = (1.0, 2.0)):
        super().__init__()
        self._script = list(script)
        self._compute_ms = compute_ms

    def say(self, message: Message) -> None:
        if isinstance(message, Result) and message.token_id is not None and self._script:
            chosen = self._script.pop(0)
            message = msgspec.structs.replace(
                message,
                token_id=chosen,
                logprob=-0.5,
                top=() if chosen is None else (TokenLogprob(token_id=chosen, logprob=-0.5),),
                compute_ms=self._compute_ms,
            )
        super().say(message)


def ids(text: str) -> list[int]:
    """As the tokenizer makes them: one for each byte."""
    encoded = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [BYTES[letter] for piece, _ in encoded for letter in piece]


class HereGrammar:
    """A grammar without a process of its own."""

    def __init__(self, chat: ChatFormat, constraint: Constraint, vocab_size: int) -> None:
        self._grammar = Grammar(constraint, TokenSets(chat, vocab_size))
        self.allowed: bytes | tuple[int, ...] | None = self._grammar.allowed().tokens
        self.is_over, self.is_closed = False, False

    async def push(self, tokens: Sequence[int]) -> None:
        self._grammar.push(tokens)
        now = self._grammar.allowed()
        self.allowed, self.is_over = now.tokens, now.is_over

    def close(self) -> None:
        self.is_closed = True


class Here:
    """A model's words, without a process of their own."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self.vocabulary = chat.vocabulary
        self.stop_ids = chat.stop_ids
        self.stop_strings: tuple[str, ...] = chat.stop_strings
        self.answers = chat.answers
        self.opened: list[HereGrammar] = []

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return self._chat.encode(text, add_special=add_special)

    async def encode_fill(self, before: str, after: str) -> list[int]:
        return encode_fill(self._chat, before, after)

    async def encode_chat(self, conversation: Conversation) -> EncodedPrompt:
        return encode_conversation(self._chat, conversation)

    async def constrain(self, constraint: Constraint, vocab_size: int) -> HereGrammar:
        self.opened.append(HereGrammar(self._chat, constraint, vocab_size))
        return self.opened[-1]


class Follower(FakeChain):
    """A chain that answers with tokens that are allowed, chosen by all tokens before; else with its own.

    Attributes:
        lost_at: its connection breaks at this position; None: never.
    """

    def __init__(self, lost_at: int | None = None) -> None:
        super().__init__()
        self.lost_at = lost_at

    def say(self, message: Message) -> None:
        if isinstance(message, Result) and message.token_id is not None:
            if message.position == self.lost_at:
                self.break_off()
                return
            sampling = self.forwards[-1].sampling
            assert sampling is not None
            if (allowed := sampling.allowed) is not None:
                ids = [
                    token
                    for token in range(258)
                    if (
                        allowed[token // 8] >> token % 8 & 1
                        if isinstance(allowed, bytes)
                        else token in allowed
                    )
                ]
                message = msgspec.structs.replace(
                    message, token_id=ids[message.token_id % len(ids)]
                )
            else:
                message = msgspec.structs.replace(message, token_id=message.token_id % 258)
        super().say(message)


class Reciter(FakeChain):
    """A chain that knows a text of token ids by heart: after each token comes the next one of it."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__()
        self._text = list(text)

    def say(self, message: Message) -> None:
        if isinstance(message, Result) and message.token_id is not None:
            following = self._text[message.position : message.position + 1]
            message = msgspec.structs.replace(message, token_id=following[0] if following else EOS)
        super().say(message)


class Desk:
    """A loaded model that says what the test says."""

    def __init__(self, chat: ChatFormat, script: Sequence[int | None], **writer: Any) -> None:
        self.chain = Writer(script, **writer)
        self.chat = chat

    def run(
        self,
        scenario: Callable[[LoadedModel], Coroutine[Any, Any, None]],
        *,
        context: int = 64,
        **defaults: Any,
    ) -> None:
        async def main() -> None:
            pipeline = Pipeline(epoch=1, first=self.chain, last=self.chain, stages=2)
            self.chain.report = pipeline.step_failed
            running = asyncio.create_task(pipeline.run())
            await asyncio.sleep(0)  # it runs before anybody asks
            generator = Generator()
            generator.attach(pipeline, context=context)
            loaded = LoadedModel(
                text=Here(self.chat),
                defaults=GenerationDefaults(**defaults),
                generator=generator,
                stage_names=("Desk", "Laptop"),
                vocab_size=258,
            )
            await scenario(loaded)
            pipeline.shut()
            running.cancel()
            await asyncio.wait([running])

        run(main())


async def events_of(loaded: LoadedModel, request: GenerationRequest) -> list[Any]:
    """What belongs to the answer: not how much of the prompt is read."""
    events = [event async for event in complete(loaded, request)]
    return [event for event in events if not isinstance(event, Reading)]


def text_of(events: Sequence[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece))
