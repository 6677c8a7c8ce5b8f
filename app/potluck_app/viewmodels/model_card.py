"""What is shown of the model that is loaded or being loaded. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from potluck.api.values.schema import ClusterState, ModelState, StageView
from potluck_app import wording
from potluck_app.tokens import Tone

ON_ITS_WAY: Final = frozenset({"preparing", "streaming", "loading"})  # of a model


class Segment(NamedTuple):
    """The part of one computer in the layer bar."""

    name: str
    start: int
    stop: int
    color: int
    tip: str

    @property
    def text(self) -> str:
        """The range of layers as people count it, both ends included."""
        return wording.layer_range(self.start, self.stop)


class ModelCard(NamedTuple):
    """The model that is loaded or being loaded."""

    name: str
    pill: str
    tone: Tone
    figures: str
    segments: tuple[Segment, ...]
    progress: float | None
    line: str  # what is happening, or why it failed
    explanation: str


def model_card(state: ClusterState) -> ModelCard | None:
    """Return the card of the model, or None if no model is loaded or being loaded."""
    model = state.model
    if model.state == "none":
        return None
    words: dict[str, tuple[str, Tone]] = {
        "preparing": ("Preparing", "accent"),
        "streaming": ("Sending layers", "accent"),
        "loading": ("Loading", "accent"),
        "ready": ("Ready", "ok"),
        "failed": ("Failed", "err"),
    }
    text, tone = words[model.state]
    if model.state == "ready" and model.answering:
        text, tone = "Generating", "accent"
    segments = _segments(state)
    figures: list[str] = []
    figures += _speeds(model)
    if segments:
        figures.append(wording.plural(max(s.stop for s in segments), "layer", "layers"))
    if model.plan is not None:
        figures.append(wording.precision(model.plan.scheme))
    if model.waiting:
        about = "" if model.wait_s is None else f", about {model.wait_s:.0f} s"
        figures.append(f"{wording.plural(model.waiting, 'prompt waits', 'prompts wait')}{about}")
    return ModelCard(
        name=wording.model_name(model.name),
        pill=text,
        tone=tone,
        figures=" · ".join(figures),
        segments=segments,
        progress=model.progress if model.state in ON_ITS_WAY else None,
        line=wording.model_progress(model, state.transfers),
        explanation=_why(model),
    )


def _speeds(model: ModelState) -> list[str]:
    """How fast this plan was in its last answer, and how fast it is predicted to be."""
    if model.plan is None or model.state != "ready":
        return []
    predicted = f"{wording.tokens_per_s(model.plan.predicted_tokens_per_s)} predicted"
    if model.tokens_per_s is None:
        return [predicted]
    return [f"{wording.tokens_per_s(model.tokens_per_s)} measured", predicted]


def _why(model: ModelState) -> str:
    """Why the model runs as it does. There is always an answer."""
    if model.plan is None:
        return (
            "Potluck measures how fast the computers and the links between them are, and gives each"
            " one the layers with which an answer comes soonest."
        )
    stages = [
        f"{s.node}: {wording.plural(s.layers[1] - s.layers[0], 'layer', 'layers')}"
        f" · {wording.size(s.memory)} · {s.predicted_ms:.1f} ms per token"
        for s in model.plan.stages
    ]
    said = model.plan.explanation.splitlines()
    return "\n".join(said if len(said) > 1 else [*said, *stages])


def _segments(state: ClusterState) -> tuple[Segment, ...]:
    plan = state.model.plan
    if plan is None:
        return ()
    colors = {computer.node_id: computer.color for computer in state.computers}
    return tuple(
        Segment(
            name=stage.group or stage.node,
            start=stage.layers[0],
            stop=stage.layers[1],
            color=colors.get(stage.node_id, index),
            tip=f"{stage.group or stage.node} · {stage.device} · {wording.size(stage.memory)}"
            f" · {stage.predicted_ms:.1f} ms per token",
        )
        for index, stage in enumerate(plan.stages)
        if stage.layers[1] > stage.layers[0] and not _is_behind(plan.stages, index)
    )


def _is_behind(stages: Sequence[StageView], index: int) -> bool:
    """Whether a stage computes the layers of the one before it together with it."""
    return index > 0 and bool(group := stages[index].group) and stages[index - 1].group == group
