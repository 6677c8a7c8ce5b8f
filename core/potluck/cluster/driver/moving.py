"""Asks the stages of a pipeline to take over a session's cache that is computed elsewhere."""

from potluck.cluster.driver.conversation import Conversation
from potluck.wire.cache_messages import ExpectCache, TakeCache


async def expect(
    conversation: Conversation, transfer: str, end: int, *, before: int | None = None
) -> None:
    """Have the stages make room for the tokens before `end` that they lack.

    Args:
        conversation: whose tokens these are.
        transfer: its name, which others have to know to send something.
        end: the position after the last of the tokens.
        before: the epoch of the plan whose stages have the cache; None: others will send it.

    Raises:
        PotluckError: a stage has no room for them, or cannot have them.
    """
    pipeline = conversation.pipeline
    assert pipeline is not None
    conversation.last_step += 1
    step = pipeline.ask(
        ExpectCache(
            epoch=pipeline.epoch,
            session=conversation.session,
            step=conversation.last_step,
            transfer=transfer,
            position=conversation.cached,
            end=end,
            before=before,
        )
    )
    try:
        await step.future
    finally:
        pipeline.give_up(step)


async def take(conversation: Conversation, transfer: str, end: int) -> int:
    """Wait until all of it is there; return where the stages go on.

    Raises:
        PotluckError: the pipeline broke.
    """
    pipeline = conversation.pipeline
    assert pipeline is not None
    conversation.last_step += 1
    step = pipeline.ask(
        TakeCache(
            epoch=pipeline.epoch,
            session=conversation.session,
            step=conversation.last_step,
            transfer=transfer,
            position=end,
        )
    )
    try:
        return (await step.future).result.position
    finally:
        pipeline.give_up(step)
