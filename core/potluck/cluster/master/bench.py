"""Measure a loaded model: prefill and decode through the real pipeline, and the floor of a token.

The floor is the time that a token takes if every stage does nothing but read its weights, and what the
token needs of its caches. It is measured in the same run: after every few tokens each stage times its parts once
(`engine/measuring.py`). The stages do so one after the other, as they do when they compute a token.
Other programs on the computers then slow both measurements alike, so the ratio of their medians is
sound. The prompts are random token ids.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import median

import msgspec

from potluck.api.values.benching import (
    BenchDepth,
    BenchProgress,
    BenchRequest,
    BenchResult,
    BenchSessions,
    BenchStage,
    BenchSum,
)
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Token, Usage
from potluck.cluster.master.asked import DEFAULT_CONTEXT
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.measurements import PROFILE_TOKENS
from potluck.cluster.master.stage_deployment import StageDeployment
from potluck.errors import UsageError
from potluck.ids import NodeId
from potluck.model.schemes import activation_item
from potluck.plan.cost import TOKEN_MESSAGE_BYTES, Sums
from potluck.plan.groups import SUM_ITEM
from potluck.wire.activation_messages import Sampling
from potluck.wire.measuring_messages import StageTimes

# tokens before decoding: few, so that attention is small and decoding mostly reads weights
SHORT_PROMPT = 16
PROMPT_DECODE = 8  # tokens after the long prompt
TURN = 8  # tokens between two measurements of the stages

LinkMs = Callable[[NodeId, NodeId, int], float]
"""Milliseconds that a message of so many bytes takes between two computers; 0 if unknown."""


@dataclass(slots=True)
class _Decoded:
    """Tokens that were decoded after so many others, and how fast the stages were between them."""

    before: int
    tokens: list[Token] = field(default_factory=list[Token])
    rounds: list[tuple[StageTimes, ...]] = field(default_factory=list[tuple[StageTimes, ...]])

    @property
    def token_ms(self) -> float:
        return 1000 * median(token.seconds for token in self.tokens)

    def weight_bytes(self, stage: int) -> int:
        return self.rounds[0][stage].weight_bytes

    def cache_bytes(self, stage: int) -> int:
        return self.rounds[0][stage].cache_bytes

    def read_bytes_per_s(self, stage: int) -> float:
        return median(each[stage].read_bytes_per_s for each in self.rounds)

    def floor_ms(self, stage: int) -> float:
        nbytes = self.weight_bytes(stage) + self.cache_bytes(stage)
        return 1000 * nbytes / self.read_bytes_per_s(stage)


@dataclass(slots=True)
class _Samples:
    short: _Decoded = field(default_factory=lambda: _Decoded(SHORT_PROMPT))
    deep: _Decoded = field(default_factory=lambda: _Decoded(0))
    after_prompt: list[Token] = field(default_factory=list[Token])
    prefill_s: list[float] = field(default_factory=list[float])
    deep_prefill: list[float] = field(default_factory=list[float])  # tokens per second
    sessions: list[BenchSessions] = field(default_factory=list[BenchSessions])


class Bench:
    """One bench of a loaded model.

    Args:
        deployment: the loaded model and its computers.
        generator: drives the pipeline of the deployment.
        request: what to measure.
        local: this computer: token ids leave from it and arrive at it.
        link_ms: times of messages on the measured links.
        sums: the measured ones.
        clock: seconds.
    """

    def __init__(
        self,
        deployment: Deployment,
        generator: Generator,
        request: BenchRequest,
        *,
        local: NodeId,
        link_ms: LinkMs,
        sums: Sums | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._deployment, self._generator, self._request = deployment, generator, request
        self._local, self._link_ms, self._clock = local, link_ms, clock
        self._sums = sums or {}
        self._random = random.Random(0)  # noqa: S311 - the same token ids in every run, no secrets
        self._samples = _Samples(deep=_Decoded(request.depth))
        # Where each stage is in the pipeline, in which the ranks of a group are at one place.
        ranks = (task.stage.rank for task in deployment.tasks)
        self._places = [place - 1 for place in accumulate(rank == 0 for rank in ranks)]

    async def run(self) -> AsyncGenerator[BenchProgress, None]:
        """Measure, and yield progress; the last progress has the result.

        Raises:
            UsageError: the context is too short.
            PeerError, EngineError: a computer was lost, or cannot be measured.
        """
        request = self._request
        # The context may be shorter than planned: a computer may have less memory by now.
        check_context(request, self._generator.context)
        await self._round(
            self._samples.short
        )  # a warm-up: what is compiled or made once is made here
        for count in range(request.repeat):
            yield self._progress("Decoding", count)
            await self._decode(self._prompt(SHORT_PROMPT), self._samples.short)
            yield self._progress("Prefilling", count + 0.5)
            await self._prefill()
        async for progress in self._measure_depth():
            yield progress
        for count in request.sessions:
            yield BenchProgress(
                state="measuring", fraction=1.0, message=f"Decoding {count} at a time"
            )
            self._samples.sessions.append(await self._decode_sessions(count))
        yield BenchProgress(state="ready", fraction=1.0, result=self.result())

    async def _measure_depth(self) -> AsyncGenerator[BenchProgress, None]:
        """Measure decode and prefill in the middle of one long conversation, again and again from there."""
        if not self._request.depth:
            return
        yield self._progress(f"Reading {self._request.depth} tokens", 0)
        before = self._prompt(self._request.depth)
        tokens = self._tokens(before, limit=1)
        async with aclosing(tokens):  # so that their steps end where each measurement begins
            first = (await anext(tokens)).token_id
        for count in range(self._request.repeat):
            await self._decode([*before, first], self._samples.deep)
            yield self._progress(f"Measuring after {len(before)} tokens", count + 0.5)
            await self._prefill_after(before)
            yield self._progress(f"Measuring after {len(before)} tokens", count + 1)

    def _progress(self, message: str, done: float) -> BenchProgress:
        fraction = done / self._request.repeat
        return BenchProgress(state="measuring", fraction=fraction, message=message)

    async def _decode(self, ids: list[int], decoded: _Decoded) -> None:
        """Decode after these tokens. The rounds in between run while the pipeline is idle."""
        for begin in range(0, self._request.tokens, TURN):
            count = min(TURN, self._request.tokens - begin)
            tokens = self._tokens(ids, limit=1 + count)
            async with aclosing(tokens):
                ids.append((await anext(tokens)).token_id)
                async for token in tokens:
                    decoded.tokens.append(token)
                    ids.append(token.token_id)
            await self._round(decoded)

    async def _prefill_after(self, before: list[int]) -> None:
        """Prefill a prompt after tokens that are cached, and those of them that a stage computes again."""
        prompt, usage = [*before, *self._prompt(self._request.prompt)], Usage()
        tokens = self._generator.tokens(prompt, Sampling(), limit=1, usage=usage)
        async with aclosing(tokens):
            seconds = (await anext(tokens)).seconds
        self._samples.deep_prefill.append((len(prompt) - usage.cached_tokens) / seconds)

    async def _prefill(self) -> None:
        tokens = self._tokens(self._prompt(self._request.prompt), limit=1 + PROMPT_DECODE)
        async with aclosing(tokens):
            self._samples.prefill_s.append((await anext(tokens)).seconds)
            async for token in tokens:
                self._samples.after_prompt.append(token)

    async def _decode_sessions(self, count: int) -> BenchSessions:
        """Decode in so many sessions that begin at the same time."""
        began = self._clock()
        tasks = [asyncio.create_task(self._decode_session()) for _ in range(count)]
        try:
            sessions = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        firsts, lasts = zip(*sessions, strict=True)
        tokens = self._request.tokens
        return BenchSessions(
            n=count,
            tokens_per_s=count * tokens / (max(lasts) - min(firsts)),
            slowest_tokens_per_s=tokens / max(last - first for first, last in sessions),
            first_token_s=max(firsts) - began,
        )

    async def _decode_session(self) -> tuple[float, float]:
        """The times at which the first and the last token came."""
        tokens = self._tokens(self._prompt(SHORT_PROMPT), limit=1 + self._request.tokens)
        async with aclosing(tokens):
            await anext(tokens)
            first = self._clock()
            async for _ in tokens:
                pass
        return first, self._clock()

    def _prompt(self, count: int) -> list[int]:
        """Random token ids. No two prompts begin alike, so each gets a session of its own."""
        vocabulary = self._deployment.planned.model.config.vocab_size
        return [self._random.randrange(vocabulary) for _ in range(count)]

    def _tokens(self, prompt: Sequence[int], *, limit: int) -> AsyncGenerator[Token, None]:
        return self._generator.tokens(prompt, Sampling(), limit=limit, usage=Usage())

    async def _round(self, decoded: _Decoded) -> None:
        """Time the parts of every stage once, at the mean position of the decoded tokens."""
        position = decoded.before + self._request.tokens // 2
        times = [
            await task.computer.measure(self._deployment.epoch, position, task.assign.device)
            for task in self._deployment.tasks
        ]
        decoded.rounds.append(tuple(times))

    # --- the result

    def result(self) -> BenchResult:
        """The medians of what was measured so far."""
        planned, samples, request = self._deployment.planned, self._samples, self._request
        stages = tuple(
            self._stage(index, task) for index, task in enumerate(self._deployment.tasks)
        )
        token_ms = samples.short.token_ms
        floor_ms = self._one_after_the_other([stage.floor_ms for stage in stages])
        return BenchResult(
            shape=planned.model.name,
            scheme=planned.scheme,
            prompt=request.prompt,
            tokens=request.tokens,
            repeat=request.repeat,
            stages=stages,
            weight_bytes=sum(stage.weight_bytes for stage in stages),
            decode_tokens_per_s=1000 / token_ms,
            prompt_decode_tokens_per_s=1 / median(token.seconds for token in samples.after_prompt),
            prefill_tokens_per_s=request.prompt / median(samples.prefill_s),
            floor_tokens_per_s=1000 / floor_ms,
            floor_fraction=floor_ms / token_ms,
            token_ms=token_ms,
            hop_ms=median(_hop_ms(token) for token in samples.short.tokens),
            link_ms=self._links_ms(),
            layer_ms=_layer_ms(stages),
            predicted_tokens_per_s=planned.plan.predicted_tokens_per_s,
            predicted_prefill_tokens_per_s=1000
            * request.prompt
            / planned.prompt_ms(request.prompt),
            sessions=tuple(samples.sessions),
            depth=self._depth() if request.depth else None,
            sums=tuple(self._measured_sums()),
        )

    def _measured_sums(self) -> Iterator[BenchSum]:
        """What each sum takes with rows as wide as this model's."""
        names = self._deployment.planned.names
        row = SUM_ITEM * self._deployment.planned.model.config.hidden_size
        for (a, b), cost in self._sums.items():
            if a in names and b in names:
                yield BenchSum(
                    nodes=(names[a], names[b]),
                    token_ms=cost.ms(row),
                    chunk_ms=cost.ms(PROFILE_TOKENS * row),
                    chunk_tokens=PROFILE_TOKENS,
                )

    def _depth(self) -> BenchDepth:
        """The medians at the depth, and what the plan says of tokens and prompts there."""
        planned, samples, request = self._deployment.planned, self._samples, self._request
        stages, deep = range(len(self._places)), samples.deep
        floor_ms = self._one_after_the_other(list(map(deep.floor_ms, stages)))
        return BenchDepth(
            cached=deep.before,
            cache_bytes=sum(map(deep.cache_bytes, stages)),
            decode_tokens_per_s=1000 / deep.token_ms,
            prefill_tokens_per_s=median(samples.deep_prefill),
            floor_tokens_per_s=1000 / floor_ms,
            floor_fraction=floor_ms / deep.token_ms,
            predicted_tokens_per_s=1000 / planned.token_ms(deep.before),
            predicted_prefill_tokens_per_s=1000
            * request.prompt
            / planned.prompt_ms(request.prompt, cached=deep.before),
        )

    def _one_after_the_other(self, times: Sequence[float]) -> float:
        """A token's time in all stages, of which the ranks of a group work at once."""
        most: dict[int, float] = {}
        for place, ms in zip(self._places, times, strict=True):
            most[place] = max(ms, most.get(place, 0.0))
        return sum(most.values())

    def _stage(self, index: int, task: StageDeployment) -> BenchStage:
        short, stage = self._samples.short, task.stage
        times = [each[index] for each in short.rounds]
        return BenchStage(
            node=stage.name,
            device=stage.device,
            layers=(stage.layers.start, stage.layers.stop),
            weight_bytes=short.weight_bytes(index),
            read_bytes_per_s=short.read_bytes_per_s(index),
            floor_ms=short.floor_ms(index),
            compute_ms=median(token.compute_ms[self._places[index]] for token in short.tokens),
            predicted_ms=stage.predicted_ms,
            layer_ms=median(each.layers_ms for each in times) / max(1, len(stage.layers)),
            head_ms=median(each.head_ms for each in times),
            cache_bytes=short.cache_bytes(index),
        )

    def _links_ms(self) -> float:
        """Milliseconds of one token on the links: into the pipeline, between stages, and back."""
        planned = self._deployment.planned
        nodes = [stage.node for stage in planned.plan.pipeline]
        hidden = planned.model.config.width * activation_item(planned.scheme)
        between = sum(
            self._link_ms(*pair, hidden + TOKEN_MESSAGE_BYTES) for pair in pairwise(nodes)
        )
        ends = ((self._local, nodes[0]), (nodes[-1], self._local))
        return between + sum(self._link_ms(*pair, TOKEN_MESSAGE_BYTES) for pair in ends)


def with_room(request: BenchRequest) -> BenchRequest:
    """The same request, with a context that has room for it, if it says none."""
    needed = max(tokens for _, tokens in _needed(request))
    if request.plan.context is not None or needed <= DEFAULT_CONTEXT:
        return request
    plan = msgspec.structs.replace(request.plan, context=needed)
    return msgspec.structs.replace(request, plan=plan)


def check_context(request: BenchRequest, context: int) -> None:
    """Refuse a bench that needs more tokens than the context holds.

    Raises:
        UsageError: the message says which option to change.
    """
    for option, needed in _needed(request):
        if needed > context:
            raise UsageError(
                f"So long a bench takes {needed:,} tokens, and the context holds {context:,}. Choose a"
                f" smaller --{option}, or a --context of {needed} or more.",
                option=option,
                needed=needed,
                context=context,
            )


def _needed(request: BenchRequest) -> list[tuple[str, int]]:
    """How many tokens of context each option takes."""
    turns = -(-request.tokens // TURN)  # the first token of each turn is not counted
    decoded, depth = request.tokens + turns, request.depth
    return [
        ("prompt", request.prompt + 1 + PROMPT_DECODE),
        ("tokens", SHORT_PROMPT + decoded),
        ("depth", depth + 1 + max(decoded, request.prompt) if depth else 0),
    ]


def _hop_ms(token: Token) -> float:
    return 1000 * token.seconds - sum(token.compute_ms)


def _layer_ms(stages: Sequence[BenchStage]) -> float:
    """Milliseconds of one layer, as the mean over the layers of all stages."""
    counts = [stage.layers[1] - stage.layers[0] for stage in stages]
    times = (count * stage.layer_ms for count, stage in zip(counts, stages, strict=True))
    return sum(times) / sum(counts)
