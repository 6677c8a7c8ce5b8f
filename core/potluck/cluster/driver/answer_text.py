"""Turn the tokens of an answer into what a client gets of it: text, reasoning, and calls of tools."""

from collections.abc import Callable, Sequence
from itertools import groupby

from potluck.api.events import CallPiece, Candidate, ChosenToken, Piece
from potluck.api.prompts import ChatPrompt, GenerationRequest
from potluck.cluster.driver.calling import offered_tools, schemas_of, special_tokens
from potluck.cluster.driver.model_text import EncodedPrompt, ModelText
from potluck.cluster.driver.token import Token
from potluck.model.answers.events import CallArguments, CallBegins, Part, Text, Thought
from potluck.model.answers.history import call_id
from potluck.model.answers.parser import AnswerParser
from potluck.model.text.detokenizer import Detokenizer, StopStrings


class AnswerText:
    """What may be shown of one answer: whole characters, and nothing of a stop string.

    Attributes:
        calls: how many calls of tools it has.
    """

    def __init__(self, text: ModelText, request: GenerationRequest, encoded: EncodedPrompt) -> None:
        """Begin an answer.

        Raises:
            PromptError: the schema of a tool is no JSON object.
        """
        self._model, self._request = text, request
        use, is_chat = offered_tools(request), isinstance(request.prompt, ChatPrompt)
        # An answer that goes on after a text begins none, so its first space counts.
        goes_on = not isinstance(request.prompt, ChatPrompt) or request.prompt.continues
        self._is_parallel = use is None or use.is_parallel
        self._parser: AnswerParser | None = None
        shown: frozenset[int] = frozenset()
        if is_chat and (use is not None or text.answers.splits_text):
            schemas = None if use is None else schemas_of(use)
            self._parser = AnswerParser(
                text.answers, schemas, is_reasoning=encoded.is_reasoning, goes_on=goes_on
            )
            shown = frozenset(special_tokens(text).values())
        self._detokenizer = Detokenizer(text.vocabulary, shown, begins=not goes_on)
        self._stop = StopStrings((*request.stop, *(text.stop_strings if is_chat else ())))
        self._is_stopped = False
        self.calls = 0

    def add(self, token: Token) -> tuple[Piece, bool]:
        """Return what the token adds to the answer, and whether the answer ends with it."""
        piece, is_over = self.push(token.token_id)
        logprobs: tuple[ChosenToken, ...] = ()
        if token.logprob is not None:
            chosen = self._candidate(token.token_id, token.logprob)
            best = tuple(self._candidate(other.token_id, other.logprob) for other in token.top)
            logprobs = (ChosenToken(chosen=chosen, best=best),)
        return (
            Piece(
                text=piece.text,
                reasoning=piece.reasoning,
                calls=piece.calls,
                token_ids=(token.token_id,),
                logprobs=logprobs,
            ),
            is_over,
        )

    def push(self, token_id: int) -> tuple[Piece, bool]:
        """The same for a token that the client may know already."""
        if token_id in self._model.stop_ids and not self._request.ignore_eos:
            return Piece(text="", token_ids=()), True
        text = self._stop.push(self._detokenizer.push(token_id))
        self._is_stopped = self._stop.hit is not None
        piece = (
            self._piece(text, self._parser.push) if self._parser else Piece(text=text, token_ids=())
        )
        return piece, self._is_stopped or (self.calls > 1 and not self._is_parallel)

    @property
    def stop_text(self) -> str | None:
        """The stop string of the client that ended the answer."""
        return self._stop.hit if self._stop.hit in self._request.stop else None

    def finish(self) -> Piece | None:
        """Return what was held back and belongs to the answer after all; None: nothing."""
        text = ""
        if not self._is_stopped:
            text = self._stop.push(self._detokenizer.flush()) + self._stop.flush()
        if self._parser is None:
            return Piece(text=text, token_ids=()) if text else None
        parser = self._parser
        piece = self._piece(text, lambda text: [*parser.push(text), *parser.end()])
        return piece if piece.text or piece.reasoning or piece.calls else None

    def _piece(self, text: str, parse: Callable[[str], Sequence[Part]]) -> Piece:
        texts: dict[type, list[str]] = {Text: [], Thought: []}
        calls: list[CallPiece] = []
        for part in parse(text):
            match part:
                case Text(text) | Thought(text):
                    texts[type(part)].append(text)
                case CallBegins(name):
                    self.calls += 1
                    calls.append(CallPiece(index=self.calls - 1, id=self._id(), name=name))
                case CallArguments(text):
                    calls.append(CallPiece(index=self.calls - 1, arguments=text))
        if not self._is_parallel:
            calls = [call for call in calls if call.index == 0]
        return Piece(
            text="".join(texts[Text]),
            reasoning="".join(texts[Thought]),
            calls=_joined(calls),
            token_ids=(),
        )

    def _id(self) -> str:
        """The id of the present call: the same when the answer goes on elsewhere."""
        return call_id(self._request.id, self.calls)

    def _candidate(self, token_id: int, logprob: float) -> Candidate:
        token = self._model.vocabulary.raw(token_id) or b""
        return Candidate(token_id=token_id, token=token, logprob=logprob)


def _joined(pieces: Sequence[CallPiece]) -> tuple[CallPiece, ...]:
    """One piece for each call."""
    found: list[CallPiece] = []
    for index, group in groupby(pieces, lambda piece: piece.index):
        same = list(group)
        arguments = "".join(piece.arguments for piece in same)
        found.append(CallPiece(index=index, id=same[0].id, name=same[0].name, arguments=arguments))
    return tuple(found)
