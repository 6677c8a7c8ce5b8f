"""What of a conversation is sent to the model. Pure."""

from collections.abc import Sequence

import msgspec

from potluck_app.chats.attachments import MAX_PICTURES
from potluck_app.chats.values import Message, Stats, prompt_text
from potluck_app.viewmodels.blocks import split_thinking

# A token of English text has about 4 characters; 3 leaves room for code and other languages.
_CHARACTERS_PER_TOKEN = 3
_PICTURE_TOKENS = 2048  # that a picture has at most
_MOST_PICTURES = 64  # that a request may have
_REPLY_SHARE = 4  # a quarter of the context is kept for the reply
_MOST_MESSAGES = 4000  # that a request may have; the node refuses more than 4096


def fitting(
    messages: Sequence[Message], context: int, system: str = "", *, sees: bool = True
) -> list[Message]:
    """Return the newest messages that fit into the context. The first one is the person's.

    Args:
        messages: the whole conversation; the new question is the last one.
        context: in tokens; 0: no model is loaded yet, and the node decides.
        system: the system prompt, which takes room too.
        sees: False: the model reads only text, so that of earlier pictures the names alone are sent.

    Returns:
        Messages with the whole text that the model reads, and of their attachments the pictures.
    """
    usable: list[Message] = []
    messages = _within_limits(messages, sees=sees)
    for message in messages:
        if usable and usable[-1].role == message.role == "user":
            usable.pop()  # its reply failed; most chat templates need alternating roles
        # Thoughts are left out: they fill the context, and models do not expect them.
        is_reply = message.role == "assistant"
        text = split_thinking(message.text)[1] if is_reply else prompt_text(message)
        pictures = tuple(each for each in message.attachments if each.picture)
        if text or pictures:
            usable.append(msgspec.structs.replace(message, text=text, attachments=pictures))
    usable = usable[-_MOST_MESSAGES:]
    if context <= 0:
        return _from_the_person(usable)
    room = (context - context // _REPLY_SHARE) * _CHARACTERS_PER_TOKEN - len(system)
    kept: list[Message] = []
    for message in reversed(usable):
        room -= _size(message)
        if room < 0 and any(each.role == "user" for each in kept):
            break
        kept.append(message)
    kept.reverse()
    return _from_the_person(kept)


def can_go_on(message: Message) -> bool:
    """Whether a reply may have more to say than is there: it was stopped, it failed, or it was cut."""
    is_part = message.status in ("stopped", "failed") or (message.cut and message.status == "done")
    return message.role == "assistant" and is_part and bool(split_thinking(message.text)[1].strip())


def together(before: Stats | None, rest: Stats | None) -> Stats | None:
    """Return the figures of a reply that was received in two parts. The prompt of the rest has the first part."""
    if before is None or rest is None:
        return rest or before
    return msgspec.structs.replace(
        rest,
        tokens=before.tokens + rest.tokens,
        prompt_tokens=max(rest.prompt_tokens - before.tokens, 0),
        time_to_first_token_s=before.time_to_first_token_s,
        loading_s=before.loading_s,
    )


def _within_limits(messages: Sequence[Message], *, sees: bool) -> list[Message]:
    """Messages of which older ones lose the pictures that one request cannot have; the newest one keeps all."""
    characters, pictures = MAX_PICTURES, _MOST_PICTURES
    kept: list[Message] = []
    for message in reversed(messages):
        characters -= sum(len(each.picture) for each in message.attachments)
        pictures -= _pictures(message)
        fits = sees and characters >= 0 and pictures >= 0
        kept.append(message if fits or not kept else _unseen(message))
    return kept[::-1]


def _unseen(message: Message) -> Message:
    """A message with the names of its pictures in their place."""
    names = [f"[picture: {each.name}]" for each in message.attachments if each.picture]
    files = tuple(each for each in message.attachments if not each.picture)
    text = "\n\n".join(filter(None, (message.text, *names)))
    return msgspec.structs.replace(message, text=text, attachments=files)


def _size(message: Message) -> int:
    """Characters of what the model reads, where a picture counts as its tokens take."""
    return len(message.text) + _pictures(message) * _PICTURE_TOKENS * _CHARACTERS_PER_TOKEN


def _pictures(message: Message) -> int:
    return sum(bool(each.picture) for each in message.attachments)


def _from_the_person(messages: list[Message]) -> list[Message]:
    """Return the messages from the first one of the person on, or the last message."""
    last = len(messages) - 1
    first = next((n for n, message in enumerate(messages) if message.role == "user"), last)
    return messages[first:]


def tokens_used(messages: Sequence[Message]) -> int:
    """Return how much of the context a conversation takes: as the node counted it, else about."""
    about = 0
    for message in reversed(messages):
        if message.stats is not None:
            return message.stats.prompt_tokens + message.stats.tokens + about
        about += len(prompt_text(message)) // (_CHARACTERS_PER_TOKEN + 1)
        about += _PICTURE_TOKENS * _pictures(message)
    return about


def tokens_needed(messages: Sequence[Message]) -> int:
    """Return the context, in tokens, in which the newest question and a reply fit for sure."""
    asked = next((message for message in reversed(messages) if message.role == "user"), None)
    about = 0
    if asked is not None:
        about = len(prompt_text(asked)) // _CHARACTERS_PER_TOKEN
        about += _PICTURE_TOKENS * _pictures(asked)
    return about * _REPLY_SHARE // (_REPLY_SHARE - 1)
