"""The first start, a new chat, and the engine while it is not installed."""

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home, models, said
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.values.engine import Engine
from potluck.api.values.hub import HubAnswer
from potluck.runtime.wheel import no_room


@scene
def first(stage: Stage) -> QWidget:
    """The first start asks what this computer should do."""
    stage.backend.say(home.alone())
    return stage.main(is_first=True)


@scene
def chat_starting(stage: Stage) -> QWidget:
    """The chat while Potluck starts in the background."""
    return stage.main()


@scene
def chat_empty(stage: Stage) -> QWidget:
    """A new chat, answered by the guide that comes with Potluck, with questions to begin with."""
    stage.backend.say(home.alone())
    return stage.main()


@scene
def chat_suggestion(stage: Stage) -> QWidget:
    """A new chat on a computer without a model of its own, with the one that suits it best."""
    stage.backend.say(home.alone())
    window = stage.main()
    window.library._on_models(())
    window.library._on_recommended(HubAnswer(models=models.RECOMMENDED))
    return window


@scene
def first_starting(stage: Stage) -> QWidget:
    """The first start before Potluck has looked at this computer."""
    return stage.main(is_first=True)


@scene
def first_problem(stage: Stage) -> QWidget:
    """The first start on a computer where Potluck cannot be started in the background."""
    window = stage.main(is_first=True)
    stage.backend.fail(said.NOT_STARTED)
    return window


@scene
def first_engine(stage: Stage) -> QWidget:
    """The first start on a computer that has to install the engine, PyTorch."""
    stage.backend.say(home.with_engine(home.alone(), said.MISSING))
    return stage.main(is_first=True)


@scene
def chat_failed_start(stage: Stage) -> QWidget:
    """The chat when Potluck cannot be started in the background."""
    window = stage.talking()
    stage.backend.fail(said.NOT_STARTED)
    return window


@scene
def chat_suggestion_coming(stage: Stage) -> QWidget:
    """A new chat while the suggested model is downloaded."""
    stage.backend.say(replace(home.alone(), downloads=models.DOWNLOADS[:1]))
    window = stage.main()
    window.library._on_models(())
    window.library._on_recommended(HubAnswer(models=models.RECOMMENDED))
    return window


def _engine(stage: Stage, engine: Engine) -> QWidget:
    window = stage.main()
    stage.backend.say(home.with_engine(home.alone(), engine))
    return window


@scene
def engine_missing(stage: Stage) -> QWidget:
    """The engine, PyTorch, is not installed: how much is fetched, and the button for it."""
    return _engine(stage, said.MISSING)


@scene
def engine_fetching(stage: Stage) -> QWidget:
    """The engine is fetched from a computer of the home that has it."""
    return _engine(stage, said.FETCHING)


@scene
def engine_unpacking(stage: Stage) -> QWidget:
    """The engine is unpacked and tried."""
    return _engine(stage, replace(said.FETCHING, phase="unpacking", done=120 * 10**6))


@scene
def engine_failed(stage: Stage) -> QWidget:
    """The engine could not be installed, and why."""
    failed = replace(said.MISSING, phase="failed", message=no_room(190 * 10**6, 44 * 10**6).message)
    return _engine(stage, failed)


@scene
def engine_none(stage: Stage) -> QWidget:
    """A computer for which there is no engine."""
    return _engine(stage, said.no_engine())
