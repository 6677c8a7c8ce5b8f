"""Build a tokenizer of `tokenizers` from the files of models that have no `tokenizer.json`.

SentencePiece and tiktoken vocabularies become a BPE or Unigram model that gives the same tokens. The way is that
of `transformers` (`convert_slow_tokenizer.py`), without its classes and without any model's program. The vocabulary
is a stranger's: see `gguf/tokenizer.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from potluck.errors import BrokenModelError
from potluck.model.gguf.tokenizer import merges_of_scores, set_ends
from potluck.model.gguf.words import CUTS, SPACE
from potluck.model.text.detokenizer import BYTE_LEVEL
from potluck.model.text.sentencepiece import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieces,
    read_sentencepiece,
)
from potluck.model.text.tiktoken import (
    MAX_TOKENS,
    RankedTokens,
    is_tiktoken,
    read_tekken,
    read_tiktoken,
)
from potluck.model.text.tokenizer_sources import TEKKEN

Config = Mapping[str, object]

_NEVER = -1e6  # the score of a piece that no text is cut into

# How the programs of repositories cut text, by the `tokenizer_class` that names them in tokenizer_config.json.
_HAN, _NO_HAN = r"\p{Han}", r"&&[^\p{Han}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + _NO_HAN + "]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + _NO_HAN + "]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI = (
    rf"[{_HAN}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_EXPRESSIONS: Mapping[str, str] = {
    "TikTokenTokenizer": _KIMI,  # Kimi, Moonlight
    "ChatGLM4Tokenizer": CUTS["chatglm-bpe"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A tokenizer, and the special tokens that its file names: `bos_token` and `eos_token`."""

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]


def convert(source: Path, data: bytes, config: Config, added: Mapping[str, object]) -> Converted:
    """Build the tokenizer that a file describes.

    Args:
        source: the file, of `find_tokenizer`.
        data: its content.
        config: the content of `tokenizer_config.json`.
        added: the content of `added_tokens.json`: texts and their ids.

    Raises:
        BrokenModelError: the file is damaged, or does not say enough.
    """
    if source.name == TEKKEN:
        return _of_ranks(read_tekken(data, source.name), config, added, is_tekken=True)
    if source.suffix == ".tiktoken" or is_tiktoken(data):
        return _of_ranks(_named(read_tiktoken(data, source.name), source, config), config, added)
    return _of_pieces(read_sentencepiece(data, source.name), config, added)


def _named(tokens: RankedTokens, source: Path, config: Config) -> RankedTokens:
    """The tokens, with the expression of the program that belongs to them."""
    name = str(config.get("tokenizer_class"))
    if name not in _EXPRESSIONS or not config.get("added_tokens_decoder"):
        raise BrokenModelError(
            f"The model's {source.name} has the tokens alone. How text is cut, and the special tokens, are in"
            f" a program of its repository ({name[:60]}), and Potluck runs no programs of models. Take the"
            " model as GGUF, or with a tokenizer.json: many repositories have one beside or in a later version.",
            file=source.name,
        )
    return RankedTokens(ids=tokens.ids, expression=_EXPRESSIONS[name])


# --- tiktoken


def _of_ranks(
    tokens: RankedTokens, config: Config, added: Mapping[str, object], *, is_tekken: bool = False
) -> Converted:
    special = {i: Added(text) for i, text in tokens.special.items()} | _added(config, added)
    texts = {token.text for token in special.values()}
    # A special token may be spelled as a plain one is: then it is found first, and the plain one never.
    spelled = {token: _spelled(token) for token in tokens.ids}
    ids = {text: tokens.ids[token] for token, text in spelled.items() if text not in texts}
    merges = [(spelled[left], spelled[right]) for left, right in tokens.merges()]
    if len(ids) < len(spelled):
        merges = [pair for pair in merges if all(text in ids for text in (*pair, "".join(pair)))]
    vocabulary = {**ids, **{token.text: i for i, token in special.items()}}
    # A word that is a token is not cut further, as tiktoken does.
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    assert tokens.expression is not None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(tokens.expression), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add(tokenizer, special)
    names = {"bos_token": "<s>", "eos_token": "</s>"} if is_tekken else {}
    return _finished(tokenizer, names, config, bos=is_tekken)


_SPELLING = {byte: char for char, byte in BYTE_LEVEL.items()}  # as `str.translate` takes it


def _spelled(token: bytes) -> str:
    """A token's bytes as characters, of which byte-level vocabularies are made."""
    return token.decode("latin-1").translate(_SPELLING)


# --- SentencePiece


def _of_pieces(model: SentencePieces, config: Config, added: Mapping[str, object]) -> Converted:
    special = {
        i: Added(_as_text(piece), special=piece.kind != USER_DEFINED)
        for i, piece in enumerate(model.pieces)
        if piece.kind in (CONTROL, UNKNOWN, USER_DEFINED) and piece.text
    } | _added(config, added)
    texts = {i: piece.text for i, piece in enumerate(model.pieces)}
    texts |= {i: token.text for i, token in special.items()}
    make = _unigram if model.kind == "unigram" else _joined
    tokenizer = make(model, texts)
    has_prefix = model.has_prefix and config.get("add_prefix_space") is not False
    _prepare(tokenizer, model, has_prefix, is_legacy=config.get("legacy") is not False)
    _add(tokenizer, special)
    names = {"bos_token": texts.get(model.first, ""), "eos_token": texts.get(model.last, "")}
    return _finished(tokenizer, names, config, bos=True)


def _joined(model: SentencePieces, texts: Mapping[int, str]) -> Tokenizer:
    normal = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
    return Tokenizer(
        BPE(
            vocab={text: i for i, text in texts.items()},
            merges=merges_of_scores(normal),
            unk_token=texts.get(model.unknown),
            fuse_unk=True,
            byte_fallback=model.has_bytes,
        )
    )


def _unigram(model: SentencePieces, texts: Mapping[int, str]) -> Tokenizer:
    never = Piece(score=_NEVER, kind=UNUSED)
    pieces = dict(enumerate(model.pieces))
    vocabulary: list[tuple[str, float]] = []
    for i in range(max(texts) + 1):
        piece = pieces.get(i, never)
        score = _NEVER if piece.kind == UNUSED else piece.score
        vocabulary.append((texts.get(i, f"<unused {i}>"), score))
    return Tokenizer(Unigram(vocabulary, unk_id=model.unknown, byte_fallback=model.has_bytes))


def _prepare(
    tokenizer: Tokenizer, model: SentencePieces, has_prefix: bool, *, is_legacy: bool
) -> None:
    """Set what is done to a text before it is cut, and to tokens after that.

    `is_legacy`: a text behind a special token begins with a space too, as a text of its own would in
    SentencePiece. `transformers` calls it so, and it is its default (`legacy` in tokenizer_config.json).
    """
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.drops_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if is_legacy:
        if has_prefix:
            steps.append(normalizers.Prepend(SPACE))
        steps.append(normalizers.Replace(" ", SPACE))
    else:
        scheme = "first" if has_prefix else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme=scheme, split=False
        )
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if has_prefix else []),
        ]
    )


def _as_text(piece: Piece) -> str:
    """What a piece that is found in a text before it is cut looks like there: its runs of spaces are spaces."""
    is_spaces = piece.kind == USER_DEFINED and not piece.text.strip(SPACE)
    return piece.text.replace(SPACE, " ") if is_spaces else piece.text


# --- special tokens


@dataclass(frozen=True, slots=True)
class Added:
    """A token that is found in a text before it is cut into words."""

    text: str
    special: bool = True  # not part of the shown text
    strips_left: bool = False
    strips_right: bool = False
    is_word: bool = False
    is_normalised: bool = False


def _added(config: Config, ids: Mapping[str, object]) -> dict[int, Added]:
    """The tokens that a model's settings add, or say more about, by their ids."""
    found = {
        i: Added(text)
        for text, i in ids.items()
        if isinstance(i, int) and 0 <= i < MAX_TOKENS and text
    }
    given = config.get("added_tokens_decoder")
    for number, value in cast("Config", given).items() if isinstance(given, Mapping) else ():
        match value:
            case {"content": str(text)} if number.isdecimal() and int(number) < MAX_TOKENS and text:
                facts = cast("Config", value)
                found[int(number)] = Added(
                    text,
                    special=facts.get("special") is not False,
                    strips_left=facts.get("lstrip") is True,
                    strips_right=facts.get("rstrip") is True,
                    is_word=facts.get("single_word") is True,
                    is_normalised=facts.get("normalized") is True,
                )
            case _:
                pass
    return found


def _add(tokenizer: Tokenizer, tokens: Mapping[int, Added]) -> None:
    """Have these tokens found in texts; the vocabulary has their ids."""
    for i, token in tokens.items():
        if tokenizer.token_to_id(token.text) != i:
            raise BrokenModelError(
                f"The files of the model's tokenizer do not belong together: the token {token.text[:40]!r} has two"
                " ids. Download tokenizer_config.json and the tokenizer's file again, from the same repository.",
                file="tokenizer_config.json",
            )
    added = [
        AddedToken(
            token.text,
            special=token.special,
            lstrip=token.strips_left,
            rstrip=token.strips_right,
            single_word=token.is_word,
            normalized=token.is_normalised and not token.special,
        )
        for token in tokens.values()
    ]
    tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]


def _finished(
    tokenizer: Tokenizer, names: Mapping[str, str], config: Config, *, bos: bool
) -> Converted:
    """Put special tokens around texts; `bos`: whether in front too, if the settings do not say it."""
    names = {name: text for name, text in names.items() if text}
    first = (
        _end(tokenizer, config, "bos_token", names) if _flag(config, "add_bos_token", bos) else None
    )
    last = (
        _end(tokenizer, config, "eos_token", names)
        if _flag(config, "add_eos_token", False)
        else None
    )
    set_ends(tokenizer, first, last)
    return Converted(tokenizer=tokenizer, special_tokens=names)


def _end(
    tokenizer: Tokenizer, config: Config, name: str, names: Mapping[str, str]
) -> tuple[str, int] | None:
    match config.get(name):
        case str(text) | {"content": str(text)}:
            pass
        case _:
            text = names.get(name, "")
    i = tokenizer.token_to_id(text)
    return None if i is None else (text, i)


def _flag(config: Config, name: str, default: bool) -> bool:
    value = config.get(name)
    return value if isinstance(value, bool) else default
