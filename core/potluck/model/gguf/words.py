"""What a GGUF file says of its tokenizer and chat template, as files of the Hugging Face layout.

The tokenizer itself is built of `TOKENIZER_FIELDS` by `gguf/tokenizer.py`. Three kinds of vocabulary are in use, and all become a BPE of `tokenizers`:

    gpt2    byte-level: the file has the merges, and `tokenizer.ggml.pre` names the way to cut text
            into words before that (`src/llama-vocab.cpp` of llama.cpp has the expressions)
    llama   SentencePiece: the file has no merges but a score for each token, and the same merges
            follow from the scores; characters that are in no token are written byte by byte
    gemma4  likewise, but the file has the merges, and runs of line ends that are tokens stay whole

Added tokens are found in a text before it is cut into words. Control tokens among them are not part
of the shown text; user-defined tokens are.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec

from potluck.errors import BrokenModelError, InvalidConfigError

TOKENIZER_FIELDS = "gguf_tokenizer.msgpack"  # the file of what a tokenizer is built of
KINDS = ("gpt2", "llama", "gemma4")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # llama.cpp's types of tokens
SPACE = "▁"

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
GPT_2 = ""  # `tokenizers` has this expression itself
DIGITS = r"\p{N}"  # applied before the expression of GPT-2

# The expression that cuts text into words, for each value of `tokenizer.ggml.pre`.
CUTS: Mapping[str, str] = {
    "default": GPT_2,  # the first converters wrote this; it means GPT-2's expression
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA_3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN_2),
    **dict.fromkeys(("tekken",), _TEKKEN),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT_4O),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4"), GPT_2),
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone"), DIGITS),
}


END_TOKENS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>",
        "<|end_of_text|>", "[|endofturn|]",
    }
)  # fmt: skip
"""Tokens that end an answer and are never shown, even if a file calls them text (Gemma's do)."""

_ENDS_BESIDE_MESSAGES = frozenset({"<|return|>", "<|call|>"})
_MESSAGE_ENDS = "<|end|>"


def end_tokens(tokens: Collection[object]) -> frozenset[str]:
    """The tokens of a vocabulary that end an answer.

    Where an answer has several messages (gpt-oss), `<|end|>` ends a message, and others the answer.
    """
    found = frozenset(token for token in (*END_TOKENS, *_ENDS_BESIDE_MESSAGES) if token in tokens)
    if found >= _ENDS_BESIDE_MESSAGES:
        return found - {_MESSAGE_ENDS}
    return found - _ENDS_BESIDE_MESSAGES


# Sampling parameters: names in `general.sampling`, and in `generation_config.json`.
_SAMPLING: Mapping[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def read_gguf_words(metadata: Mapping[str, object]) -> dict[str, bytes]:
    """`tokenizer_config.json`, `generation_config.json` and `TOKENIZER_FIELDS`, from a GGUF file's fields.

    Raises:
        InvalidConfigError: the file has no tokenizer, or one of an unknown kind.
        BrokenModelError: the tokenizer has no tokens.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in KINDS:
        raise _unknown("tokenizer.ggml.model", kind, KINDS)
    words = GgufWords(metadata)
    if kind == "gpt2" and words.cut() not in CUTS:
        raise _unknown("tokenizer.ggml.pre", words.cut(), CUTS)
    fields = {
        name: value
        for name, value in metadata.items()
        if name.startswith("tokenizer.ggml.") or name == "general.architecture"
    }
    return {
        TOKENIZER_FIELDS: msgspec.msgpack.encode(fields),
        "tokenizer_config.json": json.dumps(_settings(words)).encode(),
        "generation_config.json": json.dumps(_sampling(metadata)).encode(),
    }


class GgufWords:
    """The tokenizer's fields of a GGUF file."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.tokens = [token for token in self._list("tokens") if isinstance(token, str)]
        if not self.tokens:
            raise BrokenModelError("The GGUF file has no tokens, without which it reads no text.")
        kinds = [kind for kind in self._list("token_type") if isinstance(kind, int)]
        kinds = kinds if len(kinds) == len(self.tokens) else [NORMAL] * len(self.tokens)
        self.kinds = [
            CONTROL if token in END_TOKENS else kind
            for token, kind in zip(self.tokens, kinds, strict=True)
        ]
        match self._metadata.get("tokenizer.ggml.model"):
            case "llama":
                self._respell()
            case "gemma4":
                self._keep_line_ends()
            case _:
                pass

    def _respell(self) -> None:
        """Write user-defined runs of `▁` as spaces, since texts contain them as spaces."""
        for index, kind in enumerate(self.kinds):
            token = self.tokens[index]
            if kind == USER_DEFINED and not token.strip(SPACE):
                self.tokens[index] = token.replace(SPACE, " ")

    def _keep_line_ends(self) -> None:
        """Find runs of line ends in a text before anything else."""
        for index, token in enumerate(self.tokens):
            if len(token) > 1 and not token.strip("\n"):
                self.kinds[index] = USER_DEFINED

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

    def templates(self) -> list[dict[str, str]]:
        """The chat templates, each with its name; the first one is the one that is used alone."""
        found: list[dict[str, str]] = []
        for name in ("default", "tool_use"):
            suffix = "" if name == "default" else f".{name}"
            template = self._metadata.get(f"tokenizer.chat_template{suffix}")
            if isinstance(template, str):
                found.append({"name": name, "template": template})
        return found

    def _list(self, name: str) -> Sequence[object]:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        return cast("list[object]", value) if isinstance(value, list) else ()


def _settings(words: GgufWords) -> dict[str, object]:
    """The content of `tokenizer_config.json`."""
    settings: dict[str, object] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (token := words.special(key)) is not None:
            settings[f"{name}_token"] = token[0]
    if templates := words.templates():
        settings["chat_template"] = templates
    return settings


def _sampling(metadata: Mapping[str, object]) -> dict[str, object]:
    """The content of `generation_config.json`. Whoever reads that file checks the values."""
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {name: value for name, value in found.items() if value is not None}


def _unknown(field: str, value: object, known: Collection[str]) -> InvalidConfigError:
    shown = str(value)[:60].encode("ascii", "backslashreplace").decode()
    return InvalidConfigError(
        f"The GGUF file's {field} is {shown}, which Potluck cannot read; it reads"
        f" {', '.join(sorted(known))}. Take the model as safetensors.",
        field=field,
        value=shown,
    )
