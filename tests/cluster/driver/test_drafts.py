"""What is guessed of a conversation's next tokens, and when it pays."""

import random

import pytest

from potluck.cluster.driver.drafts import SIZES, Drafts, StepCosts

TEXT = list(range(100, 160))


def cheap(costs: StepCosts | None = None) -> StepCosts:
    """Steps with guesses that take as long as those without."""
    costs = costs or StepCosts()
    for _ in range(40):
        costs.note(0, 1.0)
        for size in SIZES:
            costs.note(size, 1.0)
    return costs


def repeated(drafts: Drafts, tokens: int) -> Drafts:
    """The conversation has the text, and so many tokens of it again, one by one."""
    drafts.begin([1, 2, *TEXT, 3])
    for place, token in enumerate(TEXT[:tokens], len(TEXT) + 3):
        drafts.go_on(place, [token])
    return drafts


def test_what_followed_the_last_tokens_before_is_guessed() -> None:
    drafts = repeated(Drafts(), 20)
    assert drafts.next(7, cheap(), ()) == tuple(TEXT[20:27])
    assert drafts.next(5, cheap(), ()) == tuple(TEXT[20:23])
    assert drafts.next(0, cheap(), ()) == ()


def test_a_token_that_ends_the_answer_is_not_guessed_nor_what_follows_it() -> None:
    assert repeated(Drafts(), 20).next(7, cheap(), {TEXT[22]}) == tuple(TEXT[20:22])


def test_nothing_is_guessed_before_guesses_were_right() -> None:
    assert repeated(Drafts(), 3).next(7, StepCosts(), ()) == ()


def test_guesses_that_were_wrong_are_not_made_any_more() -> None:
    drafts, costs = repeated(Drafts(), 30), StepCosts()
    assert drafts.next(7, costs, ())
    rng, tokens = random.Random(1), [*TEXT]
    rng.shuffle(tokens)
    sent = 0
    place = 2 + len(TEXT) + 1 + 30
    for token in tokens:  # each three tokens of the text, and then another one than there
        start = TEXT.index(token)
        for following in (*(TEXT * 2)[start : start + 3], 7):
            drafts.go_on(place, [following])
            place += 1
            sent += len(drafts.next(7, costs, ()))
    assert sent < 20


def test_what_has_begun_to_repeat_itself_goes_on_so() -> None:
    drafts, period = Drafts(), [5, 6]
    drafts.begin(period * 2)
    for place in range(4, 24):
        drafts.go_on(place, [period[place % 2]])
    assert drafts.next(7, cheap(), ()) == (5, 6, 5, 6, 5, 6, 5)


def test_the_last_place_counts_where_tokens_stood_twice() -> None:
    drafts = Drafts()
    drafts.begin([*TEXT[:20], 1, *TEXT[:10], 2, 3, 4, 5, 9, *TEXT[5:8]])
    for place, token in enumerate(TEXT[8:10], 39):
        drafts.go_on(place, [token])
    assert drafts.next(3, cheap(), ()) == (2, 3, 4)


def test_tokens_that_were_taken_back_are_guessed_no_more() -> None:
    drafts = repeated(Drafts(), 20)
    drafts.begin([*TEXT[:5], *TEXT[:4]])
    drafts.go_on(9, [TEXT[4]])
    assert drafts.next(3, cheap(), ()) == tuple(TEXT[:3])


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4])
def test_conversations_may_be_short(tokens: int) -> None:
    drafts = Drafts()
    drafts.begin(TEXT[:tokens])
    drafts.go_on(tokens, [1])
    assert drafts.next(7, cheap(), ()) == ()


def test_tokens_of_a_wrong_place_harm_nothing() -> None:
    drafts = repeated(Drafts(), 20)
    drafts.go_on(10_000, [1, 2])
    drafts.go_on(4, [1, 2])
    drafts.go_on(0, [1])
    assert drafts.next(7, cheap(), ()) == ()


def test_a_long_conversation_costs_little_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    tokens = [rng.randrange(100_000) for _ in range(50_000)]
    drafts = Drafts()
    drafts.begin(tokens)
    looked: list[int] = []
    real = hash
    monkeypatch.setitem(
        Drafts._index.__globals__, "hash", lambda gram: looked.append(1) or real(gram)
    )

    drafts.begin([*tokens, 1])  # the next turn
    drafts.go_on(50_001, [2])

    assert len(looked) <= 4


def test_more_is_guessed_where_guesses_are_mostly_right() -> None:
    costs = StepCosts()
    assert [costs.best([rate] * 7) for rate in (0.2, 0.5, 0.7, 0.99)] == [0, 1, 3, 7]
    assert costs.best([0.99] * 6) == 3
    assert costs.best([0.99] * 3 + [0.1] * 4) == 3


def test_what_steps_took_decides_what_pays() -> None:
    dear, cheaper = StepCosts(), cheap()
    for _ in range(20):
        dear.note(0, 1.0)
        for size in SIZES:
            dear.note(size, 1.0 + size)
    assert [costs.best([0.9] * 7) for costs in (dear, cheaper)] == [0, 7]
    assert cheaper.best([0.1] * 7) > 0


def test_a_step_that_was_late_once_is_tried_again() -> None:
    costs = StepCosts()
    costs.note(0, 1.0)
    for _ in range(8):
        costs.note(1, 50.0)
    assert costs.best([0.9]) == 0
    for _ in range(5000):
        costs.note(0, 1.0)
    assert costs.best([0.9]) == 1


# What steps with guesses take, in steps of one token: as measured with int4 on a CPU, and where rows are dear.
MEASURED = {0: 1.0, 1: 1.11, 2: 1.2, 3: 1.36, 4: 1.5, 5: 1.6, 6: 1.7, 7: 1.85}
DEAR = {drafts: 1.0 + 0.8 * drafts for drafts in range(8)}


@pytest.mark.parametrize(
    ("costs", "least"), [(MEASURED, 0.99), (DEAR, 0.95)], ids=["measured", "dear"]
)
@pytest.mark.parametrize("right", [0, 1, 2, 3, 4, 6, 10, 20])
def test_an_answer_takes_no_longer_however_often_guesses_are_wrong(
    costs: dict[int, float], least: float, right: int
) -> None:
    """So many tokens go on as they did somewhere before, and then comes a new one."""
    rng, text = random.Random(right), list(range(1000, 4000))
    answer: list[int] = []
    while len(answer) < 1500:
        start = rng.randrange(2900)
        answer += (*text[start : start + 3 + right], 10_000 + len(answer))
    drafts, learnt, seconds, place = Drafts(), StepCosts(), 0.0, 1
    drafts.begin(text)
    drafts.go_on(len(text), answer[:1])
    while place < len(answer):
        guesses = drafts.next(7, learnt, ())
        accepted = 0
        while accepted < len(guesses) and answer[place + accepted] == guesses[accepted]:
            accepted += 1
        seconds += costs[len(guesses)]
        learnt.note(len(guesses), costs[len(guesses)])
        drafts.go_on(len(text) + place, answer[place : place + accepted + 1])
        place += accepted + 1

    assert len(answer) / seconds > least
