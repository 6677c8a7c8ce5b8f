"""The card of the model."""

import msgspec
import pytest
from fake_backend import PLAN, computer
from scripted_window import home, running_model

from potluck.api.values.schema import ModelPhase
from potluck_app.viewmodels.model_card import model_card

MAC = computer("MacBook Air", "2", color=1)


def test_the_layer_bar_has_one_segment_per_stage_in_the_computers_colour() -> None:
    card = model_card(home(MAC, model=running_model()))

    assert card is not None
    assert [(s.name, s.text, s.color) for s in card.segments] == [
        ("here", "0\u20131", 0),
        ("there", "2\u20135", 1),
    ]
    assert card.figures == "7.9 tokens/s measured · 120 tokens/s predicted · 6 layers · 32 bits"
    assert card.pill == "Ready"
    assert card.segments[0].tip == f"here · {PLAN.stages[0].device} · 0 kB · 1.5 ms per token"


def test_before_the_first_answer_the_speed_is_a_prediction() -> None:
    card = model_card(home(model=running_model(tokens_per_s=None)))

    assert card is not None
    assert card.figures == "120 tokens/s predicted · 6 layers · 32 bits"


def test_a_model_that_answers_is_generating() -> None:
    card = model_card(home(model=running_model(answering=1)))

    assert card is not None
    assert (card.pill, card.tone) == ("Generating", "accent")


def test_a_model_on_its_way_has_no_speed_and_says_what_the_plan_will_do() -> None:
    model = running_model(state="preparing", plan=None, tokens_per_s=None)

    card = model_card(home(model=model))

    assert card is not None
    assert card.figures == ""
    assert "measures how fast" in card.explanation


@pytest.mark.parametrize("phase", ["preparing", "streaming", "loading"])
def test_a_model_on_its_way_has_its_own_name_layers_and_progress_and_no_speed_of_the_one_before(
    phase: ModelPhase,
) -> None:
    model = running_model(name="Qwen/Qwen3-32B", state=phase, progress=0.25, tokens_per_s=7.9)

    card = model_card(home(MAC, model=model))

    assert card is not None
    assert (card.name, card.progress) == ("Qwen3-32B", 0.25)
    assert "6 layers" in card.figures
    assert "tokens/s" not in card.figures


def test_a_plan_without_words_is_explained_by_its_layers() -> None:
    plan = msgspec.structs.replace(PLAN, explanation="")

    card = model_card(home(model=running_model(plan=plan)))

    assert card is not None
    assert card.explanation.startswith("here: 2 layers · 0 kB · 1.5 ms per token")


def test_prompts_that_wait_are_counted() -> None:
    card = model_card(home(model=running_model(waiting=2, wait_s=20.4)))

    assert card is not None
    assert card.figures.endswith("2 prompts wait, about 20 s")


def test_a_failed_model_says_why() -> None:
    model = running_model(state="failed", plan=None, message="4 GB are missing.")

    card = model_card(home(model=model))

    assert card is not None
    assert (card.pill, card.tone, card.line) == ("Failed", "err", "4 GB are missing.")


def test_no_model_is_no_card() -> None:
    assert model_card(home()) is None
