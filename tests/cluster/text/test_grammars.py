"""Grammars in a process of their own: what they allow, and what they may cost."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potluck.api.prompts import Constraint
from potluck.cluster.text.grammars import Grammar, GrammarLimits, Grammars
from potluck.errors import EngineError, GrammarError, NotFoundError
from potluck.model.text.chat import ChatFormat

GUIDE = Path(__file__).parents[3] / "assets" / "guide"
CHAT = ChatFormat.load(GUIDE)
SIZE = json.loads((GUIDE / "config.json").read_text())["vocab_size"]
TIGHT = GrammarLimits(memory=256 << 20, open_s=1.0, step_s=1.0)


def run(
    tmp_path: Path,
    scenario: Callable[[Grammars], Coroutine[Any, Any, None]],
    limits: GrammarLimits | None = None,
) -> None:
    async def main() -> None:
        grammars = Grammars(GUIDE, tmp_path / "grammars.log", limits)
        async with asyncio.timeout(60):
            try:
                await scenario(grammars)
            finally:
                await grammars.close()

    asyncio.run(main())


def constraint(kind: Any, text: object, **changes: Any) -> Constraint:
    return Constraint(
        kind=kind, text=text if isinstance(text, str) else json.dumps(text), **changes
    )


def ids_of(grammar: Grammar) -> list[int]:
    assert grammar.allowed is not None
    if not isinstance(grammar.allowed, bytes):
        return list(grammar.allowed)
    bits = np.unpackbits(np.frombuffer(grammar.allowed, np.uint8), bitorder="little")
    assert len(bits) == SIZE
    return np.flatnonzero(bits).tolist()


async def written(grammar: Grammar, rng: random.Random) -> str:
    """What a model writes that chooses any of the tokens that are allowed."""
    tokens: list[int] = []
    while not grammar.is_over and not set(tokens) & CHAT.stop_ids:
        tokens.append(rng.choice(ids_of(grammar)))
        await grammar.push(tokens[-1:])
        assert len(tokens) < 500
    return CHAT.decode(tokens)


def schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema whose texts are finite."""
    kinds = ["integer", "boolean", "null", "string", "enum", "array", "object"]
    match kind := rng.choice(kinds if depth else kinds[:5]):
        case "integer":
            return {"type": kind, "minimum": -5, "maximum": rng.randrange(100)}
        case "string":
            return {"type": kind, "maxLength": rng.randrange(8)}
        case "enum":
            return {"enum": [rng.choice(["a", "ü", 'x"\\y', 3, None]), True]}
        case "array":
            return {"type": kind, "items": schema(rng, depth - 1), "maxItems": 3}
        case "object":
            names = rng.sample(["name", "a b", "é", "count", "{"], rng.randrange(4))
            return {
                "type": kind,
                "properties": {name: schema(rng, depth - 1) for name in names},
                "required": names[:2],
                "additionalProperties": False,
            }
        case _:
            return {"type": kind}


def fits(value: object, wanted: dict[str, Any]) -> bool:
    if "enum" in wanted:
        return value in wanted["enum"]
    match wanted["type"]:
        case "integer":
            return type(value) is int and wanted["minimum"] <= value <= wanted["maximum"]
        case "string":
            return isinstance(value, str) and len(value) <= wanted["maxLength"]
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return (
                isinstance(value, list)
                and len(value) <= 3
                and all(fits(item, wanted["items"]) for item in value)
            )
        case _:
            return (
                isinstance(value, dict)
                and set(wanted["required"]) <= set(value) <= set(wanted["properties"])
                and all(fits(item, wanted["properties"][name]) for name, item in value.items())
            )


def test_whatever_is_chosen_follows_the_schema(tmp_path: Path) -> None:
    async def scenario(grammars: Grammars) -> None:
        for seed in range(30):
            rng = random.Random(seed)
            wanted = schema(rng)
            grammar = await grammars.open(constraint("json_schema", wanted), SIZE)

            text = await written(grammar, rng)

            assert fits(json.loads(text), wanted), (wanted, text)
            grammar.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("kind", "text", "texts"),
    [
        ("regex", "(ab|cd){2}", {"abab", "abcd", "cdab", "cdcd"}),
        ("choice", ["yes", 'n"o\n', "ö"], {"yes", 'n"o\n', "ö"}),
        ("lark", 'start: "a" rest\nrest: "b" | "c"', {"ab", "ac"}),
    ],
)
def test_each_kind_allows_its_texts(
    tmp_path: Path, kind: str, text: object, texts: set[str]
) -> None:
    async def scenario(grammars: Grammars) -> None:
        rng = random.Random(0)
        for _ in range(20):
            assert await written(await grammars.open(constraint(kind, text), SIZE), rng) in texts

    run(tmp_path, scenario)


def test_a_complete_text_that_may_go_on_allows_the_stop_tokens_too(tmp_path: Path) -> None:
    async def scenario(grammars: Grammars) -> None:
        grammar = await grammars.open(constraint("regex", "ab*"), SIZE)
        await grammar.push(CHAT.encode("a"))

        assert not grammar.is_over
        allowed = set(ids_of(grammar))
        assert allowed > CHAT.stop_ids
        assert set(CHAT.encode("b")) < allowed

    run(tmp_path, scenario)


def test_a_lazy_grammar_begins_after_its_marker_and_ends_when_it_is_complete(
    tmp_path: Path,
) -> None:
    lazy = constraint("regex", "x[0-9]{3};", opens_with="<call>")

    async def scenario(grammars: Grammars) -> None:
        grammar = await grammars.open(lazy, SIZE)
        for _ in range(2):
            await grammar.push(CHAT.encode("Well, I call <call"))
            assert grammar.allowed is None
            await grammar.push(CHAT.encode(">x1"))
            digits = {CHAT.encode(str(i))[-1] for i in range(10)}
            assert digits <= set(ids_of(grammar))
            assert all(CHAT.decode([i]).strip("0123456789;") == "" for i in ids_of(grammar))
            await grammar.push(CHAT.encode("23;"))
            assert grammar.allowed is None
            assert not grammar.is_over

    run(tmp_path, scenario)


def test_the_state_is_that_of_the_tokens_however_they_came(tmp_path: Path) -> None:
    wanted = constraint("json_schema", {"type": "object"})
    tokens = CHAT.encode('{"a": [1, {"b')

    async def scenario(grammars: Grammars) -> None:
        one, other = [await grammars.open(wanted, SIZE) for _ in range(2)]
        await one.push(tokens)
        for token in tokens:
            await other.push([token])
        assert one.allowed == other.allowed

        before = one.allowed
        process = grammars._process._process
        assert process is not None
        process.kill()  # the next process gets all tokens
        await process.wait()
        more = CHAT.encode('": 2')
        await one.push(more)
        await other.push(more)
        assert one.allowed == other.allowed != before

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json_schema", {"type": "strin"}, "strin"),
        ("json_schema", {"type": "object", "not": {"type": "null"}}, "Unimplemented keys"),
        ("json_schema", {"$ref": "#/nowhere"}, "nowhere"),
        ("json_schema", "[1]", "not an object|object"),
        ("json_schema", "{", "EOF"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("lark", "nothing", "no start rule|xpected"),
        ("lark", "start: other", "unknown name|not defined|other"),
        ("json_schema", {"enum": ["x" * (1 << 18)]}, "are the most"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_field(
    tmp_path: Path, kind: str, text: object, why: str
) -> None:
    async def scenario(grammars: Grammars) -> None:
        with pytest.raises(GrammarError, match=why) as refused:
            await grammars.open(constraint(kind, text, field="guided_json"), SIZE)
        assert str(refused.value).startswith("guided_json: ")
        assert refused.value.data["param"] == "guided_json"
        assert (await grammars.open(constraint("regex", "a"), SIZE)).allowed is not None

    run(tmp_path, scenario)


def test_a_token_that_is_not_allowed_is_an_error_of_its_answer(tmp_path: Path) -> None:
    async def scenario(grammars: Grammars) -> None:
        one, other = [await grammars.open(constraint("regex", "[ab]+"), SIZE) for _ in range(2)]
        with pytest.raises(EngineError, match="older version"):
            await one.push(CHAT.encode("c"))
        with pytest.raises(EngineError, match="older version"):
            await one.push([SIZE])
        await other.push(CHAT.encode("ab"))

    run(tmp_path, scenario)


def test_a_process_that_hangs_ends_one_answer_and_the_others_go_on(tmp_path: Path) -> None:
    async def scenario(grammars: Grammars) -> None:
        one, other = [await grammars.open(constraint("regex", "[ab]+"), SIZE) for _ in range(2)]
        process = grammars._process._process
        assert process is not None
        process.send_signal(19)  # SIGSTOP: it takes for ever
        with pytest.raises(GrammarError, match="took more than 1 seconds"):
            await one.push(CHAT.encode("a"))
        await other.push(CHAT.encode("ab"))
        assert ids_of(other)

    run(tmp_path, scenario, TIGHT)


def test_who_is_cancelled_does_not_end_the_process_for_others(tmp_path: Path) -> None:
    async def scenario(grammars: Grammars) -> None:
        one, other = [await grammars.open(constraint("regex", "[ab]+"), SIZE) for _ in range(2)]
        process = grammars._process._process
        asking = asyncio.ensure_future(one.push(CHAT.encode("a")))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await other.push(CHAT.encode("b"))
        assert grammars._process._process is process

    run(tmp_path, scenario)


def test_what_was_closed_starts_no_process(tmp_path: Path) -> None:
    async def scenario(grammars: Grammars) -> None:
        await grammars.close()
        with pytest.raises(NotFoundError, match="unloaded"):
            await grammars.open(constraint("regex", "a"), SIZE)

    run(tmp_path, scenario)
