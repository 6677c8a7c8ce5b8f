"""Turn token ids into text while they are generated: whole characters, which never change later.

A token is some bytes, and a character may need several tokens. So every token is converted to its
bytes once, and a UTF-8 decoder keeps the bytes that are not yet a character. This takes linear
time. The field `decoder` of `tokenizer.json` says how a token becomes bytes:

    ByteLevel       every byte is written as one printable character (GPT-2, Llama 3, Qwen)
    Metaspace       `▁` is a space; the first token loses the one it begins with (SentencePiece)
    Sequence        Replace `▁`, ByteFallback (`<0xE4>` is a byte), Fuse, Strip (Llama 2, Mistral, Gemma)
    null            words, with a space between them

The text equals that of `Tokenizer.decode` on all ids at once, with one exception: if a run of
`<0x..>` tokens contains invalid UTF-8, `decode` replaces the whole run. Here the valid characters
of the run were returned already, and stay.
"""

import codecs
from collections.abc import Iterable, Mapping
from typing import Self, cast

from msgspec import Struct
from tokenizers import Tokenizer

from potluck.errors import BrokenModelError

MAX_TOKEN = 1 << 20  # characters; published vocabularies have tokens of a few hundred
MAX_TOKENS = 1 << 21  # published vocabularies have up to 262,208


def _byte_level_alphabet() -> dict[str, int]:
    """The character for each byte: printable bytes stand for themselves, others begin at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + k): byte for k, byte in enumerate(others)}


BYTE_LEVEL = _byte_level_alphabet()
"""Each character that stands for a byte in byte-level vocabularies, and that byte."""


class Rules(Struct, kw_only=True):
    """What `decoder` asks for, in the order in which it is applied."""

    replacements: list[tuple[str, str]] = []
    dropped_at_start: str = ""  # the first token loses this character at every place
    byte_level: bool = False
    byte_fallback: bool = False
    separator: str = ""  # between two tokens
    stripped: tuple[str, int] = ("", 0)  # a character, and how many of them the text's start loses


class Vocabulary(Struct, frozen=True, kw_only=True):
    """The tokens of one tokenizer, and how they become bytes. All answers share it."""

    tokens: dict[int, str]
    special: frozenset[int]  # those that are not shown
    rules: Rules

    @classmethod
    def of(cls, tokenizer: Tokenizer, decoder: object) -> Self:
        """The vocabulary of a tokenizer; `decoder` is the field of that name in `tokenizer.json`.

        Raises:
            BrokenModelError: the decoder has a step of an unknown type, a token is far too long, or
                there are far too many.
        """
        tokens = {i: token for token, i in tokenizer.get_vocab(with_added_tokens=False).items()}
        added = tokenizer.get_added_tokens_decoder()
        tokens |= {i: token.content for i, token in added.items()}
        rules = read_rules(decoder)
        longest = max(map(len, tokens.values()), default=0) * _growth(rules)
        if longest > MAX_TOKEN or len(tokens) > MAX_TOKENS:
            raise BrokenModelError(
                f"The model's tokenizer.json has {len(tokens)} tokens, the longest of {longest:.0f}"
                " characters: that is no vocabulary. Download the model again.",
                file="tokenizer.json",
            )
        special = frozenset(i for i, token in added.items() if token.special)
        return cls(tokens=tokens, special=special, rules=rules)

    def shown(self, token_id: int, *, first: bool = False) -> bytes | None:
        """The bytes that the token adds to a text; None for a special or unknown token."""
        if token_id in self.special:
            return None
        return self.raw(token_id, first=first)

    def raw(self, token_id: int, *, first: bool = False) -> bytes | None:
        """The token's bytes; a special token has some too. None if no token has this id."""
        token = self.tokens.get(token_id)
        if token is None:
            return None
        rules = self.rules
        if first and rules.dropped_at_start:
            token = token.replace(rules.dropped_at_start, "")
        for old, new in rules.replacements:
            token = token.replace(old, new)
        if rules.byte_fallback and (byte := _fallback_byte(token)) is not None:
            return bytes([byte])
        if rules.byte_level and all(char in BYTE_LEVEL for char in token):
            return bytes(BYTE_LEVEL[char] for char in token)
        return (token if first else rules.separator + token).encode("utf-8", "replace")


def _growth(rules: Rules) -> float:
    """The most characters that one character of a token may become."""
    growth = 1.0
    for old, new in rules.replacements:
        growth *= max(1.0, len(new) / len(old) if old else len(new) + 1)
    return growth


class Detokenizer:
    """The text of one answer, token by token."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        shown: frozenset[int] = frozenset(),
        *,
        begins: bool = True,
    ) -> None:
        """Begin a text, in which these special tokens are shown; not `begins`: go on after another text."""
        self._vocabulary, self._shown = vocabulary, shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = begins
        self._strip_char, self._strip_left = vocabulary.rules.stripped
        if not begins:
            self._strip_left = 0

    def push(self, token_id: int) -> str:
        """The characters that this token completes; they never change again."""
        if token_id in self._shown:
            return self.flush() + self._vocabulary.tokens[token_id]
        shown = self._vocabulary.shown(token_id, first=self._first)
        if shown is None:
            return ""
        self._first = False
        return self._strip(self._decoder.decode(shown))

    def flush(self) -> str:
        """The rest of the text: a replacement character if the last character is incomplete."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        while self._strip_left and text:
            if text[0] != self._strip_char:
                self._strip_left = 0
                break
            text = text[1:]
            self._strip_left -= 1
        return text


class StopStrings:
    """End a text before the first of some strings, wherever the text is cut into pieces.

    Text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit: str | None = None  # the string that ended the text

    def push(self, text: str) -> str:
        """The text that certainly comes before any stop string; empty after a hit."""
        if self.hit is not None:
            return ""
        text = self._held + text
        # The stop string that is complete first ends the text, as if characters came one by one.
        ends = [(i + len(stop), i, stop) for stop in self._stops if (i := text.find(stop)) >= 0]
        if ends:
            _, start, self.hit = min(ends)
            self._held = ""
            return text[:start]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text that is still held back. Call it when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


def _fallback_byte(token: str) -> int | None:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None


def read_rules(decoder: object) -> Rules:
    """The rules of a `decoder`.

    Raises:
        BrokenModelError: it has a step of an unknown type.
    """
    if decoder is None:
        return Rules(separator=" ")
    rules = Rules()
    for step in _steps(decoder):
        match step:
            case {"type": "ByteLevel"}:
                rules.byte_level = True
            case {"type": "ByteFallback"}:
                rules.byte_fallback = True
            case {"type": "Fuse"}:
                pass  # the pieces are one text anyway
            case {"type": "Metaspace", "replacement": str(char)}:
                rules.replacements.append((char, " "))
                if step.get("prepend_scheme", "always") != "never":
                    rules.dropped_at_start = char
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                rules.replacements.append((old, new))
            case {"type": "Strip", "content": str(char), "start": int(start), "stop": 0}:
                rules.stripped = (char, start)
            case _:
                raise BrokenModelError(
                    f"The model's tokenizer.json decodes with {step.get('type')}, which is not"
                    " known here. Use a newer version of Potluck, or another model.",
                    file="tokenizer.json",
                )
    return rules


def _steps(decoder: object) -> list[Mapping[str, object]]:
    """The decoder's steps; each `Sequence` is flattened. `tokenizers` has validated the form."""
    step = cast("Mapping[str, object]", decoder)
    if step.get("type") != "Sequence":
        return [step]
    steps = cast("list[object]", step["decoders"])
    return [inner for part in steps for inner in _steps(part)]
