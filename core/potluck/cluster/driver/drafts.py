"""Guesses at the next tokens of an answer: what followed the last ones where these stood before. No model makes them.

Answers repeat what stands in the conversation: files that are edited, names, JSON. A step with guesses takes longer than
one without, so guesses are made where they are expected to pay, by how often those of their kind were right (also those
that were not sent, which costs nothing) and by what such steps took.
"""

from array import array
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul

from potluck.cluster.driver.computed import common_prefix

SIZES = (1, 3, 7)  # guesses of a step: kernels compute 4 and 8 tokens nearly as fast as 3 and 5
GRAM = 3  # tokens that stood there before
_LONGEST = 16  # of the tokens before, as many are compared
_KINDS = (6, 12)  # guesses are of three kinds, by how many tokens before are the same
_FIRST_RATE = 0.25  # of guesses that are right, before any was seen: none is sent
_LEARNS = 0.2  # how much the last guess counts
_WORTH = 1.05  # so many times as many tokens a second are expected, or nothing is guessed
_DEARER = 0.25  # of a step of one token, that a guess adds where nothing was measured
_COST_LEARNS = 0.25  # how much the last step counts; the first ones count more
_COST_FORGETS = 1 / 1024  # by token: what was too dear once is tried again
_DEAREST = 1.0 + max(SIZES)  # nothing pays that costs as much


class StepCosts:
    """How much longer steps with guesses take than those of one token, on one pipeline."""

    def __init__(self) -> None:
        self._single_s: float | None = None
        self._costs = {size: _unmeasured(size) for size in SIZES}
        self._noted: dict[int, int] = dict.fromkeys(SIZES, 1)

    def note(self, drafts: int, seconds: float) -> None:
        """Learn from a step with so many guesses, or from one without."""
        if drafts == 0:
            single_s = seconds if self._single_s is None else self._single_s
            usual = min(seconds, 2 * single_s)  # a thread may be woken late
            self._single_s = single_s + _COST_LEARNS * (usual - single_s)
            for size, cost in self._costs.items():
                self._costs[size] = cost + _COST_FORGETS * (_unmeasured(size) - cost)
        elif drafts in self._costs and self._single_s:
            cost = min(max(1.0, seconds / self._single_s), _DEAREST)
            self._noted[drafts] += 1
            learns = max(_COST_LEARNS, 1 / self._noted[drafts])
            self._costs[drafts] += learns * (cost - self._costs[drafts])

    def best(self, rates: Sequence[float]) -> int:
        """How many of the guesses to send that are right so often, each where those before it are."""
        expected = list(accumulate(accumulate(rates, mul), initial=1.0))  # tokens, by guesses sent
        best, worth, cost = 0, _WORTH, 1.0
        for size in SIZES:
            cost = max(cost, self._costs[size])  # more guesses never cost less
            if size <= len(rates) and expected[size] / cost > worth:
                best, worth = size, expected[size] / cost
        return best


def _unmeasured(size: int) -> float:
    return 1.0 + _DEARER * size


def _kind(same: int) -> int:
    return bisect_right(_KINDS, same)


class Drafts:
    """The tokens of one conversation, and where each sequence of `GRAM` of them stood last.

    Not thread-safe: the event loop calls `begin` while no step is under way, and after that who has the steps' lock.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # Of sequences, by a part of their hash: the place behind the last one. 0: there is none, or another one.
        self._places = array("i", [0])
        self._indexed = 0
        self._source = 0  # the place of the next guess; 0: there is none
        self._same = 0  # tokens before it that are the same as the last ones
        self._rates = [_FIRST_RATE] * (len(_KINDS) + 1)

    def begin(self, tokens: Sequence[int]) -> None:
        """Go on with these tokens, of which those that are new are looked at: 0.2 ms for 1000 of them."""
        self._indexed = min(self._indexed, common_prefix(self._tokens, tokens))
        self._tokens, self._source = list(tokens), 0
        self._index()

    def go_on(self, position: int, chosen: Sequence[int]) -> None:
        """Note tokens that were chosen, the first of which stands at this position."""
        if position < len(self._tokens):
            self.begin(self._tokens[:position])
        for token in chosen:
            self._add(token)

    def next(self, most: int, costs: StepCosts, stops: Collection[int]) -> tuple[int, ...]:
        """Guesses at the next tokens, at most so many, none of which ends the answer; none where that does not pay."""
        most = min(most, SIZES[-1]) if self._source else 0
        size = costs.best([self._rates[_kind(self._same + place)] for place in range(most)])
        guesses = self._tokens[self._source : self._source + size]
        period = len(self._tokens) - self._source
        while len(guesses) < size:  # what has begun to repeat itself goes on so
            guesses.append(guesses[-period])
        end = next((place for place, guess in enumerate(guesses) if guess in stops), size)
        return tuple(guesses[:end])

    def _add(self, token: int) -> None:
        if self._source:
            is_right, kind = self._tokens[self._source] == token, _kind(self._same)
            self._rates[kind] += _LEARNS * (is_right - self._rates[kind])
            self._source, self._same = (self._source + 1, self._same + 1) if is_right else (0, 0)
        self._tokens.append(token)
        self._index()
        if not self._source:
            self._find()

    def _find(self) -> None:
        """Find where the last tokens stood before."""
        tokens, last = self._tokens, self._tokens[-GRAM:]
        place = self._places[hash(tuple(last)) & (len(self._places) - 1)]
        if not 0 < place < len(tokens) or tokens[place - GRAM : place] != last:
            return
        self._source, self._same = place, GRAM
        most = min(_LONGEST, place)
        while self._same < most and tokens[place - self._same - 1] == tokens[-self._same - 1]:
            self._same += 1

    def _index(self) -> None:
        """Note the place behind each sequence that has a token behind it."""
        tokens, end = self._tokens, len(self._tokens)
        if end > len(self._places):
            self._places = array("i", bytes(4 << (2 * end).bit_length()))
            self._indexed = 0
        places, mask, begin = self._places, len(self._places) - 1, max(self._indexed, GRAM)
        if end <= begin:
            return
        parts = (tokens[begin - back : end - back] for back in range(GRAM, 0, -1))
        for place, gram in enumerate(zip(*parts, strict=True), begin):
            places[hash(gram) & mask] = place
        self._indexed = end
