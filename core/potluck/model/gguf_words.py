"""Turn the tokenizer and the chat template of a GGUF file into files of the Hugging Face layout.

Two kinds of vocabulary are in use, and both become a BPE of `tokenizers`:

    gpt2    byte-level: the file has the merges, and `tokenizer.ggml.pre` names the way to cut text
            into words before that (`src/llama-vocab.cpp` of llama.cpp has the expressions)
    llama   SentencePiece: the file has no merges but a score for each token, and the same merges
            follow from the scores; characters that are in no token are written byte by byte

Added tokens are found in a text before it is cut into words. Control tokens among them are not part
of the shown text; user-defined tokens are.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from potluck.errors import BrokenModelError, InvalidConfigError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # llama.cpp's types of tokens
_SPACE = "▁"
_LONGEST = 512  # characters of a token that gets merges; runs of dashes have up to 256
_NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # tokens of Phi-3

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_OF_TEKKEN = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_LLAMA_3 = _CONTRACTIONS + _WORDS + r"|\p{N}{1,3}" + _REST
_QWEN_2 = _CONTRACTIONS + _WORDS + r"|\p{N}" + _REST
_TEKKEN = "|".join(_CASED) + r"|\p{N}" + _REST_OF_TEKKEN
_GPT_4O = "|".join(f"{part}{_CONTRACTIONS}?" for part in _CASED) + r"|\p{N}{1,3}" + _REST_OF_TEKKEN
_GPT_2 = ""  # `tokenizers` has this expression itself
_DIGITS = r"\p{N}"  # applied before the expression of GPT-2

# The expression that cuts text into words, for each value of `tokenizer.ggml.pre`.
_CUTS: Mapping[str, str] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA_3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN_2),
    **dict.fromkeys(("tekken",), _TEKKEN),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT_4O),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4"), _GPT_2),
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone"), _DIGITS),
}
# With these, a word that is a token is not cut further, and texts begin with the bos token.
_WHOLE_WORDS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"})
_NORMALISED = frozenset({"qwen2", "deepseek-r1-qwen"})  # to NFC, as their own tokenizers do


END_TOKENS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
        "<|end_of_text|>", "[|endofturn|]",
    }
)  # fmt: skip
"""Tokens that end an answer and are never shown, even if a file calls them text (Gemma's do)."""

# Sampling parameters: names in `general.sampling`, and in `generation_config.json`.
_SAMPLING: Mapping[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def read_gguf_words(metadata: Mapping[str, object]) -> dict[str, bytes]:
    """`tokenizer.json`, `tokenizer_config.json` and `generation_config.json`, from a GGUF file's fields.

    Raises:
        InvalidConfigError: the file has no tokenizer, or one of an unknown kind.
        BrokenModelError: the tokenizer's fields do not fit together.
    """
    kind, words = metadata.get("tokenizer.ggml.model"), _Words(metadata)
    build = _KINDS.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise _unknown("tokenizer.ggml.model", kind, _KINDS)
    try:
        tokenizer = build(words)
        _add_tokens(tokenizer, words)
        text = tokenizer.to_str()
    except (InvalidConfigError, BrokenModelError):
        raise
    except Exception as error:  # `tokenizers` raises nothing more specific
        raise BrokenModelError(
            f"The GGUF file's tokenizer cannot be read: {error}. Download the file again."
        ) from error
    return {
        "tokenizer.json": text.encode("utf-8", "replace"),
        "tokenizer_config.json": json.dumps(_settings(words)).encode(),
        "generation_config.json": json.dumps(_sampling(metadata)).encode(),
    }


class _Words:
    """The tokenizer's fields of a GGUF file."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.tokens = [token for token in self._list("tokens") if isinstance(token, str)]
        if not self.tokens:
            raise BrokenModelError("The GGUF file has no tokens, without which it reads no text.")
        kinds = [kind for kind in self._list("token_type") if isinstance(kind, int)]
        kinds = kinds if len(kinds) == len(self.tokens) else [_NORMAL] * len(self.tokens)
        self.kinds = [
            _CONTROL if token in END_TOKENS else kind
            for token, kind in zip(self.tokens, kinds, strict=True)
        ]
        if self._metadata.get("tokenizer.ggml.model") == "llama":
            self._respell()

    def _respell(self) -> None:
        """Write user-defined runs of `▁` as spaces, since texts contain them as spaces."""
        for index, kind in enumerate(self.kinds):
            token = self.tokens[index]
            if kind == _USER_DEFINED and not token.strip(_SPACE):
                self.tokens[index] = token.replace(_SPACE, " ")

    @property
    def vocabulary(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    @property
    def merges(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for merge in self._list("merges"):
            text = str(merge)
            left, space, right = text[1:].partition(" ")  # the left part may be a space itself
            if space:
                found.append((text[0] + left, right))
        return found

    @property
    def scores(self) -> list[float]:
        scores = [float(score) for score in self._list("scores") if isinstance(score, int | float)]
        if len(scores) != len(self.tokens):
            raise BrokenModelError("The GGUF file has not one score for each of its tokens.")
        return scores

    def cut(self) -> str:
        """The name of the way to cut text into words, `tokenizer.ggml.pre`."""
        name = self._metadata.get("tokenizer.ggml.pre", "default")
        return name if isinstance(name, str) else ""

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        return value if isinstance(value, bool) else default

    def special(self, name: str) -> tuple[str, int] | None:
        """The text and id of the token for this purpose (`bos`, `eos`, …); None: there is none."""
        index = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            return None
        return self.tokens[index], index

    @property
    def strips_behind_added(self) -> bool:
        """Whether added tokens remove the spaces behind them: only Phi-3's do, as in llama.cpp."""
        family = self._metadata.get("general.architecture")
        return family == "phi3" and self._metadata.get("tokenizer.ggml.model") == "llama"

    def template(self) -> str | None:
        template = self._metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def _list(self, name: str) -> Sequence[object]:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        return cast("list[object]", value) if isinstance(value, list) else ()


def _byte_level(words: _Words) -> Tokenizer:
    name = words.cut()
    if name == "default":  # the first converters wrote this; it means GPT-2's expression
        expression = _GPT_2
    elif (found := _CUTS.get(name)) is not None:
        expression = found
    else:
        raise _unknown("tokenizer.ggml.pre", name, _CUTS)
    whole = name in _WHOLE_WORDS
    vocabulary = words.vocabulary
    merges = [
        (left, right)
        for left, right in words.merges
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=whole))
    uses_own = expression in (_GPT_2, _DIGITS)
    steps = [pre_tokenizers.Split(Regex(expression), behavior="isolated")] if expression else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=uses_own)]
    )
    if name in _NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_ends(tokenizer, words, bos=whole)
    return tokenizer


def _sentence_piece(words: _Words) -> Tokenizer:
    unknown = next(
        (t for t, k in zip(words.tokens, words.kinds, strict=True) if k == _UNKNOWN), None
    )
    tokenizer = Tokenizer(
        BPE(
            vocab=words.vocabulary,
            merges=_merges_of_scores(words),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = words.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    _add_ends(tokenizer, words, bos=True)
    return tokenizer


_KINDS: Mapping[str, Callable[[_Words], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}


def _merges_of_scores(words: _Words) -> list[tuple[str, str]]:
    """Every way to join two tokens to a third, highest score of the third first.

    SentencePiece joins in this order. Merges of equal scores are in the order of `transformers`. A
    token longer than `_LONGEST` gets no merges: trying each cut takes time in the square of its
    length.
    """
    normal = {
        token: score
        for token, kind, score in zip(words.tokens, words.kinds, words.scores, strict=True)
        if kind == _NORMAL
    }
    merges = [
        (score, token[:cut], token[cut:])
        for token, score in normal.items()
        if len(token) <= _LONGEST
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), -len(merge[2])))
    return [(left, right) for _, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, words: _Words) -> None:
    """Add the tokens that are found in a text before it is cut into words."""
    strips = words.strips_behind_added
    added = [
        AddedToken(
            token,
            special=kind != _USER_DEFINED,
            normalized=False,
            rstrip=strips and token not in _NOT_STRIPPED,
        )
        for token, kind in zip(words.tokens, words.kinds, strict=True)
        if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED) and token
    ]
    tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]


def _add_ends(tokenizer: Tokenizer, words: _Words, *, bos: bool) -> None:
    """Put special tokens around texts; `bos`: whether in front too, if the file does not say it."""
    first = words.special("bos") if words.flag("add_bos_token", bos) else None
    last = words.special("eos") if words.flag("add_eos_token", False) else None
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


def _settings(words: _Words) -> dict[str, object]:
    """The content of `tokenizer_config.json`."""
    settings: dict[str, object] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (token := words.special(key)) is not None:
            settings[f"{name}_token"] = token[0]
    if (template := words.template()) is not None:
        settings["chat_template"] = template
    return settings


def _sampling(metadata: Mapping[str, object]) -> dict[str, object]:
    """The content of `generation_config.json`. Whoever reads that file checks the values."""
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {name: value for name, value in found.items() if value is not None}


def _unknown(field: str, value: object, known: Mapping[str, object]) -> InvalidConfigError:
    shown = str(value)[:60].encode("ascii", "backslashreplace").decode()
    return InvalidConfigError(
        f"The GGUF file's {field} is {shown}, which Potluck cannot read; it reads"
        f" {', '.join(sorted(known))}. Take the model as safetensors.",
        field=field,
        value=shown,
    )
