"""One answer: asked for, shown while it arrives, and how long it took."""

import argparse
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

import msgspec

from potluck.api.v1.answer_shapes import Usage
from potluck.api.v1.request_shapes import ChatCompletionRequest, ChatMessage
from potluck.api.v1.tagged_reply import TaggedReply
from potluck.api.values.timings import Timings
from potluck.cli.answering import Answering
from potluck.cli.markdown import Markdown
from potluck.cli.printing import has_styles, put, put_spans, say_dim
from potluck.client import NodeGoneError


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and how long it took."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    time_to_first_token_s: float
    tokens_per_s: float


def speak(
    answering: Answering,
    options: argparse.Namespace,
    messages: list[ChatMessage],
    show: Callable[[str], None],
) -> Spoken:
    """Answer the last message.

    Args:
        answering: asks the node.
        options: of the command: how the answer is chosen.
        messages: the conversation.
        show: called with each part of the answer when it arrives.

    Raises:
        PotluckError: why there is no answer, or not all of it.
    """
    request = ChatCompletionRequest(
        messages=messages,
        temperature=options.temperature,
        top_p=options.top_p,
        max_completion_tokens=options.max_tokens,
        seed=options.seed,
    )
    text: list[str] = []
    reply = TaggedReply()
    last = None
    with closing(answering.chat(request)) as chunks:
        for last in chunks:
            for choice in last.choices:
                text.append(reply.more(choice.delta))
                show(text[-1])
    if last is None or not isinstance(last.usage, Usage) or not isinstance(last.potluck, Timings):
        raise NodeGoneError("The answer ended without its figures. Is the node of another version?")
    return Spoken(
        text="".join(text),
        prompt_tokens=last.usage.prompt_tokens,
        completion_tokens=last.usage.completion_tokens,
        time_to_first_token_s=last.potluck.time_to_first_token_s,
        tokens_per_s=last.potluck.tokens_per_s,
    )


@contextmanager
def showing() -> Generator[Callable[[str], None], None, None]:
    """Print an answer while it arrives: Markdown with styles on a terminal, elsewhere as it is."""
    markdown = Markdown() if has_styles(sys.stdout) else None
    last = "\n"  # an answer that has not begun needs no end of its line

    def show(text: str) -> None:
        nonlocal last
        last = text[-1:] or last
        if markdown is None:
            put(text, end="")
        else:
            put_spans(markdown.feed(text))

    try:
        yield show
    finally:
        if markdown is not None:
            put_spans(markdown.end())
        if last != "\n":
            put("")


def say_figures(spoken: Spoken) -> None:
    """Say how long the answer took."""
    say_dim(
        f"[{spoken.completion_tokens} tokens, {spoken.tokens_per_s:.1f} a second,"
        f" the first after {spoken.time_to_first_token_s:.2f} s]"
    )
