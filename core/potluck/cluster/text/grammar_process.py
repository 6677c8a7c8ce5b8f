"""The process that says which tokens may come next in constrained answers.

A schema or a grammar is a stranger's program: `serving` limits what it may cost. `llguidance` computes the
sets of tokens.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from potluck.api.prompts import Constraint
from potluck.cluster.text.grammar_messages import (
    Allowed,
    OpenGrammar,
    OpenVocabulary,
    VocabularyOpened,
    decode_to_grammar,
)
from potluck.cluster.text.serving import serve
from potluck.errors import EngineError, GrammarError
from potluck.model.answers.schemas import closed
from potluck.model.text.chat import ChatFormat
from potluck.system.limits import end_after, limit_memory

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_MOST_WORDS = 300  # characters of an explanation of the library
# Between values. Without a limit, a model that loses its way writes white space for ever.
_JSON: "JsonCompileOptions" = {"whitespace_pattern": r"[ \t]{1,2}|\r?\n{1,2}[ \t]{0,40}"}
_LINE_ENDS = r"/[ \t\r\n]{0,4}/"
_ID_BYTES = 5  # of a token id in a message, at most


class TokenSets:
    """The vocabulary of a model, in the form that `llguidance` takes."""

    def __init__(self, chat: ChatFormat, vocab_size: int) -> None:
        """`chat` is the model's; its weights know `vocab_size` token ids."""
        self._chat = chat
        vocabulary = chat.vocabulary
        self.raw = [vocabulary.raw(token_id) or b"" for token_id in range(vocab_size)]
        self.vocab_size = vocab_size
        self.stop_ids = sorted(i for i in self._chat.stop_ids if i < vocab_size)
        # Attributes that the wrapper reads. A model without stop tokens gets one that does not exist.
        self.tokens = [*self.raw, b""] if not self.stop_ids else self.raw
        self.special_token_ids = [
            *(i for i in vocabulary.special if i < vocab_size),
            *([] if self.stop_ids else [vocab_size]),
        ]
        ends = self.stop_ids or [vocab_size]
        self.eos_token_id, self.bos_token_id = ends[0], None
        self.tokenizer = LLTokenizer(TokenizerWrapper(self), eos_token=ends)

    def __call__(self, text: str | bytes) -> list[int]:
        """The token ids of text that is the only one possible, so that the answer has the model's own."""
        if isinstance(text, bytes):
            raise TypeError("tokenizers read text")
        ids = self._chat.encode(text, add_special=False)
        if b"".join(self.raw[i] if i < self.vocab_size else b"" for i in ids) == text.encode():
            return ids
        return self.tokenizer.greedy_tokenize(text)


def compile_grammar(constraint: Constraint, sets: TokenSets) -> LLMatcher:
    """The grammar of a constraint.

    Raises:
        GrammarError: it is invalid, or uses what is not supported.
    """
    try:
        matcher = LLMatcher(sets.tokenizer, _source(constraint), log_level=0)
    except ValueError as error:
        raise _refused(constraint, str(error)) from None
    if matcher.is_error():
        raise _refused(constraint, _words(matcher))
    return matcher


def _source(constraint: Constraint) -> str:
    """The constraint as `llguidance` takes it."""
    text = constraint.text
    match constraint.kind:
        case "json_schema" | "loose_json_schema":
            options: JsonCompileOptions = {**_JSON, "lenient": constraint.kind != "json_schema"}
            text = _closed(text)
            if (
                constraint.opens_with and not constraint.repeats
            ):  # after reasoning and its line ends
                return f"start: {_LINE_ENDS} value\nvalue: %json {_with_options(text, options)}"
            return LLMatcher.grammar_from_json_schema(text, defaults=options)
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "lark":
            return grammar_from("grammar", text)  # which knows GBNF by its `::=`
        case "choice":
            choices = (json.dumps(choice, ensure_ascii=False) for choice in json.loads(text))
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}")


def _closed(schema: str) -> str:
    """A JSON schema, see `closed`; what is none is left to the library, which says why."""
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(schema)
        if isinstance(read, dict):
            return json.dumps(closed(cast("dict[str, object]", read)))
    return schema


def _with_options(schema: str, options: "JsonCompileOptions") -> str:
    """A JSON schema that says itself how it is followed."""
    read = json.loads(schema)
    if not isinstance(read, dict):
        return schema
    return json.dumps({**cast("dict[str, object]", read), "x-guidance": options})


class Grammar:
    """The state of one constrained answer: a function of its tokens."""

    def __init__(self, constraint: Constraint, sets: TokenSets) -> None:
        """Raises GrammarError: the constraint is invalid."""
        self._sets = sets
        self._start = compile_grammar(constraint, sets)
        self._marker = constraint.opens_with.encode()
        self._repeats = bool(self._marker) and constraint.repeats
        self._matcher = None if self._marker else self._start  # None: anything may come
        self._text = b""  # the end of what came since then, as long as the marker

    def push(self, tokens: Sequence[int]) -> None:
        """Take the next tokens of the answer.

        Raises:
            EngineError: one of them is not allowed.
        """
        for token in tokens:
            if not 0 <= token < self._sets.vocab_size:
                raise _not_allowed(token)
            if self._matcher is not None and self._consume(self._matcher, token):
                continue
            if self._matcher is not None and not self._repeats:
                raise _not_allowed(token)
            self._matcher = None
            self._look_for_marker(self._sets.raw[token])

    def allowed(self) -> Allowed:
        """The tokens that may come next.

        Raises:
            EngineError: the grammar became too complex.
        """
        if self._matcher is None or (self._repeats and self._matcher.is_accepting()):
            return Allowed(tokens=None)
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise EngineError(
                f"The grammar became too complex while it was followed: {_words(self._matcher)}."
                " Simplify it."
            )
        is_over = self._matcher.is_stopped()
        return Allowed(tokens=_as_sent(bits, self._sets.vocab_size), is_over=is_over)

    def _consume(self, matcher: LLMatcher, token: int) -> bool:
        """Whether the grammar goes on with the token. If not, it is as it was."""
        return matcher.try_consume_tokens([token]) == 1

    def _look_for_marker(self, raw: bytes) -> None:
        """Begin the grammar if the marker ends in these bytes. They may go beyond it."""
        text = self._text + raw
        at = text.find(self._marker)
        if at < 0:
            self._text = text[-len(self._marker) :]
            return
        self._text = b""
        rest = text[at + len(self._marker) :]
        matcher = self._start.deep_copy()
        tokens = self._sets.tokenizer.tokenize_bytes(rest) if rest else []
        if matcher.try_consume_tokens(tokens) == len(tokens):
            self._matcher = matcher


class GrammarServer:
    """Answers the requests of one node."""

    def __init__(self) -> None:
        self._wanted: OpenVocabulary | None = None
        self._sets: TokenSets | None = None
        self._grammars: dict[int, Grammar] = {}

    def answer(self, frame: bytes) -> Allowed | VocabularyOpened:
        """The answer to a request.

        Raises:
            GrammarError: a constraint is invalid.
            EngineError: a token is not allowed, or a grammar became too complex.
            BrokenModelError: a file is missing or unreadable.
        """
        request = decode_to_grammar(frame)
        if isinstance(request, OpenVocabulary):
            limit_memory(request.memory)
            end_after(request.vocabulary_s)
            self._wanted = request
            self._sets = TokenSets(ChatFormat.load(Path(request.folder)), request.vocab_size)
            return VocabularyOpened()
        assert self._wanted is not None  # the node asks for nothing until the vocabulary is open
        assert self._sets is not None
        if isinstance(request, OpenGrammar):
            end_after(self._wanted.open_s)
            for closed in request.closed:
                self._grammars.pop(closed, None)
            self._grammars[request.grammar] = Grammar(request.constraint, self._sets)
        else:
            end_after(self._wanted.step_s)
        grammar = self._grammars[request.grammar]
        grammar.push(request.tokens)
        return grammar.allowed()


def _as_sent(bits: bytes, vocab_size: int) -> bytes | tuple[int, ...]:
    """A set of tokens in the shorter of its two forms."""
    size = (vocab_size + 7) // 8
    allowed = np.unpackbits(np.frombuffer(bits, np.uint8), count=vocab_size, bitorder="little")
    if _ID_BYTES * np.count_nonzero(allowed) < size:
        return tuple(np.flatnonzero(allowed).tolist())
    return np.packbits(allowed, bitorder="little").tobytes()


def _refused(constraint: Constraint, why: str) -> GrammarError:
    field = constraint.field
    return GrammarError(
        f"{field}: no answer can be made to follow it: {why[:_MOST_WORDS]}", param=field
    )


def _words(matcher: LLMatcher) -> str:
    """Why a matcher failed."""
    return " ".join(matcher.get_error().split("<state>")[0].split())[:_MOST_WORDS]


def _not_allowed(token: int) -> EngineError:
    return EngineError(
        f"The answer has the token {token}, which its grammar does not allow. The computer that chose it"
        " may have an older version of Potluck: update it."
    )


if __name__ == "__main__":
    serve(GrammarServer().answer)
