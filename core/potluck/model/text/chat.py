"""How a model reads and writes text: its tokenizer, its chat template, and where its answers end.

Everything comes from the model's folder (`tokenizer_folder.py`). A chat is encoded as `transformers`
does it: the template writes the special tokens, so the tokenizer adds none. A model without a template was
trained to continue texts. It gets the conversation as one text: each message begins with `User:` or
`Assistant:`, and a new `User:` ends the answer.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import TypeAlias, cast

from tokenizers import Tokenizer

from potluck.errors import PromptError
from potluck.model.answers.derive import derive_format
from potluck.model.answers.format import PLAIN_CALLS, AnswerFormat
from potluck.model.answers.history import for_template
from potluck.model.text.detokenizer import Detokenizer, Vocabulary
from potluck.model.text.template import ChatTemplate
from potluck.model.text.tokenizer_folder import (
    DEFAULT,
    TOOL_USE,
    broken_tokenizer,
    read_folder,
    utf8,
)
from potluck.model.vision.layouts import Layout
from potluck.model.vision.pictures import PictureFormat

ChatMessage: TypeAlias = Mapping[str, object]
"""`role`, `content` and what else the template reads (`tool_calls`, `name`), all JSON values."""

ROLES = ("system", "user", "assistant", "tool")

_MAX_DEPTH = 64  # of nested JSON values in a message
_CONTINUE_HERE = "\ue000potluck\ue000"  # private use: no text has it, and no template trims it away
_PLAIN_STOP = "\nUser:"


def local_now() -> datetime:
    """The time now on this computer's clock, in its own time zone."""
    return datetime.now(UTC).astimezone()


class ChatFormat:
    """How one model reads and writes. It is immutable, so all conversations can share it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None = None,
        tool_template: ChatTemplate | None = None,
        special_tokens: Mapping[str, str] | None = None,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Put together what was read.

        Args:
            tokenizer: of the model.
            template: of its chats; None: it was trained to continue texts.
            tool_template: of chats in which tools are offered; None: they have the same.
            special_tokens: named as in `tokenizer_config.json`: `bos_token`, `eos_token`.
            stop_ids: tokens that end an answer.
        """
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.vocabulary = Vocabulary.of(tokenizer, _decoder_of(tokenizer))
        self._template, self._tool_template = template, tool_template or template
        self._special_tokens = dict(special_tokens or {})
        self.stop_ids = stop_ids
        self.stop_strings = () if template else (_PLAIN_STOP,)
        self.answers = AnswerFormat(calls=PLAIN_CALLS)
        if template is not None:
            sources = [template.source, *([tool_template.source] if tool_template else [])]
            self.answers = derive_format(self._probe, "\n".join(sources))

    @classmethod
    def load(cls, folder: Path, *, now: Callable[[], datetime] = local_now) -> "ChatFormat":
        """Read a model's folder.

        Raises:
            BrokenModelError: a file is missing or unreadable.
        """
        read = read_folder(folder)
        templates = {name: ChatTemplate(source, now) for name, source in read.templates.items()}
        return cls(
            read.tokenizer,
            template=templates.get(DEFAULT),
            tool_template=templates.get(TOOL_USE),
            special_tokens=read.special_tokens,
            stop_ids=read.stop_ids,
        )

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer puts around texts.

        Raises:
            BrokenModelError: the tokenizer fails.
        """
        with broken_tokenizer("reads no text"):
            ids: list[int] = self._tokenizer.encode(utf8(text), add_special_tokens=add_special).ids
        bos = self._tokenizer.token_to_id(self._special_tokens.get("bos_token", ""))
        if add_special and bos is not None and ids[:2] == [bos, bos]:
            del ids[0]  # the text itself began with one
        return ids

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text in the tokenizer; None: there is none."""
        return self._tokenizer.token_to_id(text)

    def places(self, mark: str) -> bool:
        """Whether its template knows pictures: it writes this mark for one."""
        return self._template is not None and mark in self._template.source

    def picture_text(self, mark: str) -> str:
        """What the template writes for a picture between two texts of a user; the mark, if it puts it elsewhere."""
        before, after = f"{_CONTINUE_HERE}1", f"{_CONTINUE_HERE}2"
        parts = [
            {"type": "text", "text": before},
            {"type": "image"},
            {"type": "text", "text": after},
        ]
        try:
            text = self._probe([{"role": "user", "content": parts}], None, True)
        except PromptError:
            return mark
        between = text.partition(before)[2].partition(after)[0]
        return between if between.count(mark) == 1 else mark

    def _probe(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, object]] | None,
        is_prompt: bool,
    ) -> str:
        """A conversation as `derive_format` has it rendered."""
        return self._rendered(messages, tools, {}, is_prompt=is_prompt)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        continue_final: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, up to the place where the assistant's answer begins.

        Args:
            messages: the conversation so far.
            tools: descriptions that the template may offer to the model.
            continue_final: the answer continues the last message, which is the assistant's.
            variables: other values that the template may read, such as `enable_thinking`.

        Raises:
            PromptError: the conversation is malformed, or the model's template refuses it.
        """
        text = self.render_chat(
            messages, tools=tools, continue_final=continue_final, variables=variables
        )
        return self.encode_rendered(text)

    def encode_rendered(self, text: str) -> list[int]:
        """The token ids of a text of `render_chat`."""
        return self.encode(text, add_special=self._template is None)

    def encode_with_pictures(
        self, text: str, form: PictureFormat, layouts: Sequence[Layout]
    ) -> tuple[list[int], int]:
        """The token ids of a text of `render_chat` with pictures, and the one that stands for a row of them.

        Args:
            text: has the model's mark for each picture.
            form: how the model takes pictures.
            layouts: of each picture.

        Raises:
            PromptError: the text has more or fewer marks than there are pictures.
        """
        facts = form.facts
        token = self.token_id(facts.token)
        texts = text.split(facts.mark)
        is_missing = token is None and not form.has_rows_alone
        if is_missing or len(texts) != len(layouts) + 1:
            raise PromptError(
                f"The conversation has {len(layouts)} pictures, and its text {len(texts) - 1} times the mark"
                f" {facts.mark}, by which this model knows where they stand. Leave the mark out of messages."
            )
        if token is None:
            return self._encode_around(texts, form, layouts)
        for number, layout in enumerate(layouts):
            texts[number] += form.text(layout)
        ids = self.encode_rendered("".join(texts))
        if ids.count(token) != sum(map(form.rows_of, layouts)):
            raise PromptError(
                f"A message has the text {facts.token}, which stands for a part of a picture. Leave it out."
            )
        return ids, token

    def _encode_around(
        self, texts: Sequence[str], form: PictureFormat, layouts: Sequence[Layout]
    ) -> tuple[list[int], int]:
        """The same for a tokenizer without a token for rows: one that no text has stands for them.

        Files of LLaVA have the vocabulary of its decoder alone. Each text becomes tokens by itself.
        """
        first, *rest = texts
        parts = [
            self.encode_rendered(first),
            *(self.encode(one, add_special=False) for one in rest),
        ]
        used = set(chain.from_iterable(parts))
        token = next(number for number in count() if number not in used)
        ids = list(parts[0])
        for layout, part in zip(layouts, parts[1:], strict=True):
            ids += [token] * form.rows_of(layout) + part
        return ids, token

    def begins_reasoning(self, text: str) -> bool:
        """Whether a text of `render_chat` ends inside of the answer's reasoning."""
        reasoning = self.answers.reasoning
        if reasoning is None:
            return False
        return text.rstrip().endswith(reasoning.opens)

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        continue_final: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text that `encode_chat` encodes, from the same arguments."""
        given = [_checked(message) for message in messages]
        if not given:
            raise PromptError("The conversation is empty. Send at least one message.")
        chat, tools = for_template(self.answers, given, tools)
        if continue_final:
            if chat[-1]["role"] != "assistant" or not chat[-1].get("content"):
                raise PromptError("Only an assistant's message at the end can be continued.")
            chat[-1]["content"] = f"{chat[-1]['content']}{_CONTINUE_HERE}"
        if self._template is None:
            text = _plain(chat, prompt=not continue_final)
        else:
            text = self._rendered(chat, tools, variables or {}, is_prompt=not continue_final)
        if continue_final:
            text, mark, _ = text.rpartition(_CONTINUE_HERE)
            if not mark:
                raise PromptError("The model's chat template leaves out the message to continue.")
        return text

    def _rendered(
        self,
        chat: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, object]] | None,
        variables: Mapping[str, object],
        *,
        is_prompt: bool,
    ) -> str:
        template = self._tool_template if tools else self._template
        assert template is not None
        return template.render(
            {
                **self._special_tokens,
                **cast("dict[str, object]", _json_value(variables)),
                "messages": chat,
                "tools": None if tools is None else _json_value(tools),
                "documents": None,
                "add_generation_prompt": is_prompt,
            }
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, without special tokens."""
        detokenizer = Detokenizer(self.vocabulary)
        return "".join([*map(detokenizer.push, ids), detokenizer.flush()])


def _decoder_of(tokenizer: Tokenizer) -> object:
    """The field `decoder` of `tokenizer.json`.

    It does not come from `to_str`, which also writes the vocabulary and counts from 0 to the
    largest id for that: an id near 2³¹ in a broken file takes gigabytes, and can end the process.
    """
    decoder = tokenizer.decoder
    return None if decoder is None else json.loads(decoder.__getstate__())


def _checked(message: ChatMessage) -> dict[str, object]:
    """A message as the template may see it: plain JSON values, with the content as one text."""
    role = message.get("role")
    if role == "developer":  # what OpenAI's newer clients call it
        role = "system"
    if role not in ROLES:
        raise PromptError(f"A message has the role {role!r}. Use one of {', '.join(ROLES)}.")
    # Templates test whether a field exists, and would write `None` for a field that is null.
    plain = {
        str(name): _json_value(value)
        for name, value in message.items()
        if value is not None and name != "content"
    }
    plain["role"] = role
    content = message.get("content")
    if content is not None:
        plain["content"] = _content_of(content)
    elif role != "assistant":
        raise PromptError(f"A message of the {role} has no content.")
    return plain


def _content_of(content: object) -> str | list[dict[str, str]]:
    """A message's text; with pictures, its parts, as templates of such models read them."""
    if not isinstance(content, list | tuple):
        return _text_of(content)
    parts = cast("Sequence[object]", content)
    if {"type": "image"} not in parts:
        return _text_of(parts)
    return [
        {"type": "image"}
        if part == {"type": "image"}
        else {"type": "text", "text": _text_of([part])}
        for part in parts
    ]


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return utf8(content)
    if not isinstance(content, list | tuple):
        raise PromptError("A message's content must be text, or a list of parts with text.")
    texts: list[str] = []
    for part in cast("Sequence[object]", content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(utf8(text))
            case {"type": str(kind)} if kind != "text":
                raise PromptError(
                    f"This model reads only text, and a message has a part of type {kind}."
                    " Leave it out."
                )
            case _:
                raise PromptError("A part of a message's content has no text.")
    return "\n".join(texts)


def _json_value(value: object, depth: int = 0) -> object:
    """A copy made of plain JSON values, so that the template sees no object with our methods."""
    if depth > _MAX_DEPTH:
        raise PromptError("A message is nested too deeply.")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(name): _json_value(item, depth + 1) for name, item in items}
    if isinstance(value, Sequence):
        return [_json_value(item, depth + 1) for item in cast("Sequence[object]", value)]
    raise PromptError(f"A message carries a {type(value).__name__}, which is no JSON value.")


def _plain(chat: Sequence[Mapping[str, object]], *, prompt: bool) -> str:
    """The conversation for a model that knows no chat format."""
    titles = {"system": "", "user": "User: ", "assistant": "Assistant: ", "tool": "Tool: "}
    if any(isinstance(message.get("content"), list) for message in chat):
        raise PromptError("This model has no chat template, which says where pictures stand.")
    parts = [f"{titles[str(message['role'])]}{message.get('content', '')}" for message in chat]
    if prompt:
        parts.append("Assistant:")
    return "\n".join(parts)
