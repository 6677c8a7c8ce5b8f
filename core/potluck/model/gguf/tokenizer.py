"""Build the tokenizer that a GGUF file describes.

The vocabulary is a stranger's: building it may take all memory, a long time, or crash. So it is done
by the process that uses the tokenizer, which has limits.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from potluck.errors import BrokenModelError
from potluck.files import write_atomically
from potluck.model.gguf.words import (
    CONTROL,
    CUTS,
    DIGITS,
    GPT_2,
    NORMAL,
    SPACE,
    TOKENIZER_FIELDS,
    UNKNOWN,
    USER_DEFINED,
    GgufWords,
)

_LONGEST = 512  # characters of a token that gets merges; runs of dashes have up to 256
_NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # tokens of Phi-3
# With these, a word that is a token is not cut further, and texts begin with the bos token.
_WHOLE_WORDS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"})
_NORMALISED = frozenset({"qwen2", "deepseek-r1-qwen"})  # to NFC, as their own tokenizers do


def make_tokenizer(folder: Path) -> None:
    """Write `tokenizer.json` of what a GGUF file says, unless it is there already.

    Args:
        folder: of the model's words. One without `TOKENIZER_FIELDS` is not changed.

    Raises:
        BrokenModelError: the fields do not fit together.
        OSError: a file cannot be read or written.
    """
    source, made = folder / TOKENIZER_FIELDS, folder / "tokenizer.json"
    if made.is_file() or not source.is_file():
        return
    fields = source.read_bytes()
    text = build_tokenizer(msgspec.msgpack.decode(fields, type=dict[str, object]))
    if source.read_bytes() == fields:  # the GGUF file was not replaced meanwhile
        write_atomically(made, text.encode("utf-8", "replace"))


def build_tokenizer(fields: Mapping[str, object]) -> str:
    """The content of `tokenizer.json`, from the fields of a GGUF file that were checked.

    Raises:
        BrokenModelError: they do not fit together.
    """
    words = GgufWords(fields)
    try:
        tokenizer = _BUILD[str(fields["tokenizer.ggml.model"])](words)
        _add_tokens(tokenizer, words)
        return tokenizer.to_str()
    except (BrokenModelError, MemoryError):
        raise
    except Exception as error:  # `tokenizers` raises nothing more specific
        raise BrokenModelError(
            "The GGUF file's tokenizer cannot be read. Download the file again."
        ) from error


def _byte_level(words: GgufWords) -> Tokenizer:
    name = words.cut()
    expression = CUTS[name]
    whole = name in _WHOLE_WORDS
    merges = _merges_of_file(words)
    tokenizer = Tokenizer(BPE(vocab=words.vocabulary, merges=merges, ignore_merges=whole))
    uses_own = expression in (GPT_2, DIGITS)
    steps = [pre_tokenizers.Split(Regex(expression), behavior="isolated")] if expression else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=uses_own)]
    )
    if name in _NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_ends(tokenizer, words, bos=whole)
    return tokenizer


def _merges_of_file(words: GgufWords) -> list[tuple[str, str]]:
    vocabulary = words.vocabulary
    return [
        (left, right)
        for left, right in words.merges
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]


def _sentence_piece(words: GgufWords) -> Tokenizer:
    return _pieces(
        words, merges_of_scores(_scores(words)), prefix=words.flag("add_space_prefix", True)
    )


def _merged_pieces(words: GgufWords) -> Tokenizer:
    return _pieces(words, _merges_of_file(words), prefix=False)


def _pieces(words: GgufWords, merges: list[tuple[str, str]], *, prefix: bool) -> Tokenizer:
    """A BPE of characters; `prefix`: a space stands before each text."""
    unknown = next(
        (t for t, k in zip(words.tokens, words.kinds, strict=True) if k == UNKNOWN), None
    )
    tokenizer = Tokenizer(
        BPE(
            vocab=words.vocabulary,
            merges=merges,
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    _add_ends(tokenizer, words, bos=True)
    return tokenizer


def _scores(words: GgufWords) -> dict[str, float]:
    """Normal tokens and their scores."""
    return {
        token: score
        for token, kind, score in zip(words.tokens, words.kinds, words.scores, strict=True)
        if kind == NORMAL
    }


def merges_of_scores(normal: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to join two of these tokens to a third, highest score of the third first.

    SentencePiece joins in this order. Merges of equal scores are in the order of `transformers`. A
    token longer than `_LONGEST` gets no merges: trying each cut takes time in the square of its
    length.
    """
    merges = [
        (score, token[:cut], token[cut:])
        for token, score in normal.items()
        if len(token) <= _LONGEST
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), -len(merge[2])))
    return [(left, right) for _, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, words: GgufWords) -> None:
    """Add the tokens that are found in a text before it is cut into words."""
    strips = words.strips_behind_added
    added = [
        AddedToken(
            token,
            special=kind != USER_DEFINED,
            normalized=False,
            rstrip=strips and token not in _NOT_STRIPPED,
        )
        for token, kind in zip(words.tokens, words.kinds, strict=True)
        if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token
    ]
    tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]


def _add_ends(tokenizer: Tokenizer, words: GgufWords, *, bos: bool) -> None:
    """Put special tokens around texts; `bos`: whether in front too, if the file does not say it."""
    first = words.special("bos") if words.flag("add_bos_token", bos) else None
    last = words.special("eos") if words.flag("add_eos_token", False) else None
    set_ends(tokenizer, first, last)


def set_ends(
    tokenizer: Tokenizer, first: tuple[str, int] | None, last: tuple[str, int] | None
) -> None:
    """Put special tokens, each a text and an id, around the tokens of a text; None: nothing."""
    ends = [end for end in (first, last) if end is not None]
    if not ends:
        return
    # These names stand for the tokens, since a token's own text may have a meaning in a template.
    pieces = (["first"] if first else []) + ["$A"] + (["last"] if last else [])
    names = {"first": first, "last": last}
    tokenizer.post_processor = TemplateProcessing(
        single=pieces,
        special_tokens=[
            {"id": name, "ids": [end[1]], "tokens": [end[0]]}
            for name, end in names.items()
            if end is not None
        ],
    )


_BUILD: Mapping[str, Callable[[GgufWords], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "gemma4": _merged_pieces,
}
