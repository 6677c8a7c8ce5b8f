"""What computers with an older program cannot do: plans do without them, and a plan made by hand is refused."""

from collections.abc import Sequence
from typing import TypeVar

from potluck.cluster.computer import Computer
from potluck.cluster.master.stage_deployment import StageDeployment
from potluck.errors import PotluckError, VersionMismatchError
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme
from potluck.wire.versions import RANKS_SINCE, READERS_SINCE, check_age

_Error = TypeVar("_Error", bound=PotluckError)


def check_ages(
    stages: Sequence[StageDeployment],
    config: ModelConfig,
    scheme: Scheme,
    answering: Sequence[StageDeployment] = (),
) -> None:
    """Refuse stages on computers whose program is too old for them. Call it before anything is sent.

    Args:
        stages: of the plan.
        config: of the model.
        scheme: how its weights are held.
        answering: the stages to which those of this plan send the caches of prompts.

    Raises:
        VersionMismatchError: names the computer to update.
    """
    for each in stages:
        name, version = each.progress.name, each.computer.version
        check_age(name, version, config, scheme)
        if each.stage.is_ranked and version < RANKS_SINCE:
            raise VersionMismatchError(
                f"{name} cannot compute layers together with others: its Potluck is"
                " too old. Update it there.",
                computer=name,
            )
    for each in (*stages, *answering) if answering else ():
        if each.computer.version < READERS_SINCE:
            name = each.progress.name
            raise VersionMismatchError(
                f"{name} cannot take part where some computers read prompts for others: its Potluck is"
                " too old. Update it there.",
                computer=name,
            )


def too_old(computer: Computer, config: ModelConfig, scheme: Scheme) -> VersionMismatchError | None:
    """The error that says why a computer can have no layers of a model; None: it can."""
    try:
        check_age(computer.name, computer.version, config, scheme)
    except VersionMismatchError as error:
        return error
    return None


def naming_old(
    error: _Error, computers: Sequence[Computer], config: ModelConfig, scheme: Scheme
) -> _Error:
    """The same error, which also names the computers that are left out for their age."""
    reasons = [each.message for c in computers if (each := too_old(c, config, scheme)) is not None]
    error.message = " ".join((error.message, *reasons))
    error.args = (error.message,)
    return error
