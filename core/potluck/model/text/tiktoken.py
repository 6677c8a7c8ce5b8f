"""Read vocabularies in the form of tiktoken: tokens as bytes, each with its rank.

Text is cut into words by a regular expression, and within a word the neighbours whose joined bytes have the
lowest rank are joined, until none can be (https://github.com/openai/tiktoken). Files of `*.tiktoken` and
`tiktoken.model` have one token in each line, in base64, and nothing else: the expression and the special tokens
are in a program of the model's repository, which is not run. Mistral's `tekken.json` has all of them.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from potluck.errors import BrokenModelError

MAX_TOKENS = 1 << 21  # published vocabularies have up to 262,208
_LONGEST = 512  # bytes of a token that gets merges; runs of spaces have up to 128
_FIRST_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]",
    "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""The special tokens of the first files of tekken, which do not name them (mistral-common, `tekken.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTokens:
    """A vocabulary.

    Attributes:
        ids: of each token, in the order of their ranks.
        expression: cuts text into words; None: the file does not say it.
        special: texts of special tokens by their ids.
    """

    ids: Mapping[bytes, int] = field(repr=False)
    expression: str | None = None
    special: Mapping[int, str] = field(default_factory=dict[int, str], repr=False)

    def merges(self) -> list[tuple[bytes, bytes]]:
        """Every way to join two tokens to a third, the lowest rank of the third first."""
        ids = self.ids
        found: list[tuple[bytes, bytes]] = []
        for token in ids:
            if len(token) > _LONGEST:
                continue
            cuts = [
                (token[:cut], token[cut:])
                for cut in range(1, len(token))
                if token[:cut] in ids and token[cut:] in ids
            ]
            found += sorted(cuts, key=lambda cut: (ids[cut[0]], ids[cut[1]]))
        return found


def is_tiktoken(data: bytes) -> bool:
    """Whether a file has a token and a rank in its first line."""
    try:
        _line(data.partition(b"\n")[0])
    except (ValueError, binascii.Error):
        return False
    return True


def read_tiktoken(data: bytes, name: str) -> RankedTokens:
    """Read lines of tokens and ranks; `name` is the file's, for messages.

    Raises:
        BrokenModelError: a line is not one.
    """
    try:
        lines = [line for line in data.split(b"\n", MAX_TOKENS + 1) if line.strip()]
        tokens = sorted(map(_line, lines), key=lambda line: line[1])
    except (ValueError, binascii.Error) as error:
        raise _broken(name) from error
    return RankedTokens(ids=_checked([token for token, _ in tokens], [i for _, i in tokens], name))


class _Config(msgspec.Struct):
    pattern: Annotated[str, Meta(max_length=1 << 16)]
    default_vocab_size: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    default_num_special_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    token_str: str


class _Tekken(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def read_tekken(data: bytes, name: str) -> RankedTokens:
    """Read `tekken.json` as mistral-common does: special tokens come first.

    Raises:
        BrokenModelError: it is damaged.
    """
    try:
        # Not as `msgspec` reads it: a stranger's file may begin with a byte-order mark.
        read = msgspec.convert(json.loads(data), _Tekken)
        special_count = read.config.default_num_special_tokens
        kept = read.vocab[: read.config.default_vocab_size - special_count]
        tokens = [base64.b64decode(token.token_bytes, validate=True) for token in kept]
    except (ValueError, RecursionError, binascii.Error) as error:
        raise _broken(name) from error
    if [token.rank for token in kept] != list(range(len(kept))):
        raise _broken(name)
    special = {i: f"<SPECIAL_{i}>" for i in range(special_count)}
    if read.special_tokens is None:
        special |= dict(enumerate(_FIRST_SPECIAL[:special_count]))
    else:
        special |= {one.rank: one.token_str for one in read.special_tokens}
    if any(i >= special_count for i in special):
        raise _broken(name)
    ids = range(special_count, special_count + len(tokens))
    return RankedTokens(
        ids=_checked(tokens, ids, name), expression=read.config.pattern, special=special
    )


def _line(line: bytes) -> tuple[bytes, int]:
    token, rank = line.split()
    if len(rank) > 9:
        raise ValueError
    return base64.b64decode(token, validate=True), int(rank)


def _checked(tokens: Sequence[bytes], ids: Sequence[int], name: str) -> dict[bytes, int]:
    """The tokens with their ids, if they are a vocabulary in which any text can be written."""
    found = dict(zip(tokens, ids, strict=True))
    are_ids = len(set(ids)) == len(ids) and all(0 <= i < MAX_TOKENS for i in ids)
    if not are_ids or len(found) != len(tokens) or not all(bytes([b]) in found for b in range(256)):
        raise _broken(name)
    return found


def _broken(name: str) -> BrokenModelError:
    return BrokenModelError(
        f"The model's {name} is not a whole vocabulary in the form of tiktoken: it is cut off or damaged."
        " Download this file again.",
        file=name,
    )
