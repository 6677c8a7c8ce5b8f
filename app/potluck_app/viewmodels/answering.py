"""Which model answers the next prompt. Pure."""

from potluck.api.values.schema import ClusterState
from potluck_app import wording


def answering(state: ClusterState | None) -> tuple[str, bool]:
    """Return the name of the model that answers the next prompt, and whether it is the guide."""
    served = state.served[0] if state is not None and state.served else None
    if state is None or state.model.state == "none":
        is_guide = served is None or served.is_guide
        return wording.model_name("guide" if served is None else served.name), is_guide
    is_guide = served is not None and served.is_guide and served.name == state.model.name
    return wording.model_name(state.model.name), is_guide


def sees(state: ClusterState | None) -> bool | None:
    """Whether that model reads pictures; None: it is not loaded, and that is not known yet."""
    served = state.served[0] if state is not None and state.served else None
    if served is None:
        return None
    return False if served.is_guide else served.sees


def why_blind(state: ClusterState | None) -> str:
    """Why that model reads no pictures, although it has files for that; nothing: it has none."""
    served = state.served[0] if state is not None and state.served else None
    return served.blind or "" if served is not None else ""
