"""How a model reads and writes text: its tokenizer, its chat template, and where its answers end.

Everything comes from the model's folder, in the Hugging Face layout:

    tokenizer.json            the tokenizer; the only file that must exist
    tokenizer_config.json     special tokens; in older models also the chat template
    special_tokens_map.json   special tokens, in older models
    chat_template.jinja       the chat template; it wins over the one in tokenizer_config.json
    generation_config.json    the tokens that end an answer; config.json may name some too

A chat is encoded as `transformers` does it: the template writes the special tokens, so the tokenizer
adds none. A model without a template was trained to continue texts. It gets the conversation as one
text: each message begins with `User:` or `Assistant:`, and a new `User:` ends the answer.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias, cast

from tokenizers import Tokenizer

from potluck.errors import BrokenModelError, PromptError
from potluck.model.answers.derive import derive_format
from potluck.model.answers.format import PLAIN_CALLS, AnswerFormat
from potluck.model.answers.history import for_template
from potluck.model.detokenizer import Detokenizer, Vocabulary
from potluck.model.gguf_tokenizer import make_tokenizer
from potluck.model.template import ChatTemplate
from potluck.reasons import reason

ChatMessage: TypeAlias = Mapping[str, object]
"""`role`, `content` and what else the template reads (`tool_calls`, `name`), all JSON values."""

ROLES = ("system", "user", "assistant", "tool")

_MAX_FILE = 256 << 20  # bytes; the largest tokenizer.json of a published model has 35 MB
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
        special_tokens: Mapping[str, str] | None = None,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        """The special tokens are named as in `tokenizer_config.json`: `bos_token`, `eos_token`."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.vocabulary = Vocabulary.of(tokenizer, _decoder_of(tokenizer))
        self._template = template
        self._special_tokens = dict(special_tokens or {})
        self.stop_ids = stop_ids
        self.stop_strings = () if template else (_PLAIN_STOP,)
        self.answers = AnswerFormat(calls=PLAIN_CALLS)
        if template is not None:
            self.answers = derive_format(self._probe, template.source)

    @classmethod
    def load(cls, folder: Path, *, now: Callable[[], datetime] = local_now) -> "ChatFormat":
        """Read a model's folder.

        Raises:
            BrokenModelError: a file is missing or unreadable.
        """
        tokenizer = _load_tokenizer(folder)
        config = _read_json(folder, "tokenizer_config.json")
        special = _special_tokens(_read_json(folder, "special_tokens_map.json"), config)
        source = _template_source(folder, config)
        return cls(
            tokenizer,
            template=None if source is None else ChatTemplate(source, now),
            special_tokens=special,
            stop_ids=_stop_ids(folder, tokenizer, special),
        )

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer puts around texts.

        Raises:
            BrokenModelError: the tokenizer fails.
        """
        with _broken_tokenizer("reads no text"):
            ids: list[int] = self._tokenizer.encode(_utf8(text), add_special_tokens=add_special).ids
        bos = self._tokenizer.token_to_id(self._special_tokens.get("bos_token", ""))
        if add_special and bos is not None and ids[:2] == [bos, bos]:
            del ids[0]  # the text itself began with one
        return ids

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text in the tokenizer; None: there is none."""
        return self._tokenizer.token_to_id(text)

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
        assert self._template is not None
        return self._template.render(
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
        plain["content"] = _text_of(content)
    elif role != "assistant":
        raise PromptError(f"A message of the {role} has no content.")
    return plain


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return _utf8(content)
    if not isinstance(content, list | tuple):
        raise PromptError("A message's content must be text, or a list of parts with text.")
    texts: list[str] = []
    for part in cast("Sequence[object]", content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(_utf8(text))
            case {"type": str(kind)} if kind != "text":
                raise PromptError(
                    f"This model reads only text, and a message has a part of type {kind}."
                    " Leave it out."
                )
            case _:
                raise PromptError("A part of a message's content has no text.")
    return "\n".join(texts)


def _utf8(text: str) -> str:
    """Replace lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _json_value(value: object, depth: int = 0) -> object:
    """A copy made of plain JSON values, so that the template sees no object with our methods."""
    if depth > _MAX_DEPTH:
        raise PromptError("A message is nested too deeply.")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(name): _json_value(item, depth + 1) for name, item in items}
    if isinstance(value, Sequence):
        return [_json_value(item, depth + 1) for item in cast("Sequence[object]", value)]
    raise PromptError(f"A message carries a {type(value).__name__}, which is no JSON value.")


def _plain(chat: Sequence[Mapping[str, object]], *, prompt: bool) -> str:
    """The conversation for a model that knows no chat format."""
    titles = {"system": "", "user": "User: ", "assistant": "Assistant: ", "tool": "Tool: "}
    parts = [f"{titles[str(message['role'])]}{message.get('content', '')}" for message in chat]
    if prompt:
        parts.append("Assistant:")
    return "\n".join(parts)


def _load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    with _broken_tokenizer("cannot be built"):
        make_tokenizer(folder)
    if not path.is_file():
        raise BrokenModelError(
            f"The model in {folder} has no tokenizer.json, without which no text becomes tokens."
            " Download the model again, or convert it to the Hugging Face layout.",
            file="tokenizer.json",
        )
    text = _read_text(path)
    with _broken_tokenizer("cannot be read"):
        return Tokenizer.from_str(text)


@contextmanager
def _broken_tokenizer(what: str) -> Generator[None]:
    """Raise `BrokenModelError` for whatever `tokenizers` raises."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, BrokenModelError):
            raise
        # The library has no error classes of its own, and its `PanicException` is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BrokenModelError(
            f"The model's tokenizer.json {what}. Download the model again.",
            file="tokenizer.json",
        ) from error


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_FILE:
            raise BrokenModelError(f"The model's {path.name} is too large.", file=path.name)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenModelError(
            f"The model's {path.name} cannot be read: {reason(error)}.", file=path.name
        ) from error


def _read_json(folder: Path, name: str) -> Mapping[str, object]:
    """The JSON object in the file; an empty one if there is no such file."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise BrokenModelError(
            f"The model's {name} is damaged. Download the model again.", file=name
        ) from error
    if not isinstance(value, dict):
        raise BrokenModelError(f"The model's {name} is not a JSON object.", file=name)
    return cast("dict[str, object]", value)


def _special_tokens(*configs: Mapping[str, object]) -> dict[str, str]:
    """`bos_token` and the like: each value is text, or an object with the text as its `content`."""
    tokens: dict[str, str] = {}
    for config in configs:
        for name, value in config.items():
            match value:
                case str(text) | {"content": str(text)} if name.endswith("_token"):
                    tokens[name] = _utf8(text)
                case _:
                    pass
    return tokens


def _template_source(folder: Path, config: Mapping[str, object]) -> str | None:
    """The source of the chat template, of several the one named `default`; None: there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    found = config.get("chat_template")
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, list) and (named := _named_templates(cast("list[object]", found))):
        return named.get("default") or next(iter(named.values()))
    raise BrokenModelError(
        "The model's tokenizer_config.json has a chat_template that is no text and no list of"
        " named ones. Download the model again.",
        file="tokenizer_config.json",
    )


def _named_templates(entries: list[object]) -> dict[str, str]:
    named: dict[str, str] = {}
    for entry in entries:
        match entry:
            case {"name": str(name), "template": str(source)}:
                named[name] = source
            case _:
                pass
    return named


def _stop_ids(folder: Path, tokenizer: Tokenizer, special: Mapping[str, str]) -> frozenset[int]:
    """The tokens that any of the files calls the end of an answer; files do not always agree."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder, name).get("eos_token_id")
        candidates = cast("list[object]", value) if isinstance(value, list) else [value]
        found |= {i for i in candidates if isinstance(i, int) and not isinstance(i, bool)}
    named = tokenizer.token_to_id(special.get("eos_token", ""))
    if named is not None:
        found.add(named)
    return frozenset(i for i in found if i >= 0)
