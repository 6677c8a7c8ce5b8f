"""The models that programs can ask for by name: one at a time is loaded, on its first use, and unloaded when unused.

A model that a program asks for takes the place of the loaded one when nobody is answered by that any more. The user's
choice stays: after the model was unloaded, a prompt that names none loads the chosen one again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from potluck.api.events import Loading, Waiting
from potluck.api.values.schema import PlanRequest, ServedModel
from potluck.cluster.activity import Activity
from potluck.cluster.chosen import served
from potluck.cluster.driver.loaded_model import LoadedModel
from potluck.cluster.driver.pixel_room import PixelRoom
from potluck.cluster.library import NodeLibrary
from potluck.cluster.loads import progress_of
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.master import Master
from potluck.cluster.model_turns import ModelTurn, ModelTurns
from potluck.cluster.words import Words
from potluck.errors import ModelError, ModelNotFoundError, NotFoundError, PotluckError
from potluck.hub.found import ModelFolder

logger = logging.getLogger(__name__)

LIST_S = 3.0  # of work to read what the files of models say; the rest comes with the next list
KNOWN_S = 2.0  # a list is as good for so long: clients ask for it again and again


class ModelsAtHand:
    """The models of this computer, and who is answered by which of them.

    Args:
        master: loads them.
        library: knows them, and the user's choice.
        activity: tells of changes of the master's state.
        text_log: of the process that runs a model's tokenizer.
        clock: in seconds.
    """

    def __init__(
        self,
        *,
        master: Master,
        library: NodeLibrary,
        activity: Activity,
        text_log: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.words = Words(text_log)
        self._master = master
        self._library = library
        self._activity = activity
        self._clock = clock
        self._turns = ModelTurns(lambda: self.first().name)
        self._pixels = PixelRoom()
        self._lent: tuple[PlanRequest, ServedModel] | None = (
            None  # the last model that was asked for
        )
        self._listed: tuple[float, Sequence[ServedModel]] | None = None
        self._use: tuple[Deployment | None, int] = (None, 0)  # as it was seen last
        self._unused_since = 0.0

    # --- what there is

    def first(self) -> ServedModel:
        """The loaded model or, if none is loaded, the one that a prompt loads."""
        deployment, chosen = self._master.deployment, self._library.chosen
        if deployment is not None:
            planned = deployment.planned
            model = planned.model
            found = served(model.name, model.folder, (model.manifest.model_id,), guide=chosen.guide)
            return replace(
                found,
                is_loaded=self._master.is_ready,
                context=planned.context,
                sees=model.config.tower is not None,
                blind=model.blind,
            )
        if self._lent is not None and self._lent[0] == self._master.request:
            return self._lent[1]
        return chosen.served()

    async def list(self) -> Sequence[ServedModel]:
        """All of them, each name once, the first one of `first` first."""
        now = self._clock()
        if self._listed is None or now - self._listed[0] >= KNOWN_S:
            self._listed = now, await asyncio.to_thread(self._look)
        first = self.first()
        same = next((model for model in self._listed[1] if model.name == first.name), None)
        if same is not None:
            context = first.context or same.context
            aliases = tuple(dict.fromkeys((*first.aliases, *same.aliases)))
            first = replace(same, aliases=aliases, is_loaded=first.is_loaded, context=context)
        return (first, *(model for model in self._listed[1] if model.name != first.name))

    def _look(self) -> Sequence[ServedModel]:
        """The models on this computer that can be run. Blocks."""
        ends_at = self._clock() + LIST_S
        models: dict[str, ServedModel] = {}
        for model in self._library.known.list():
            found = self._described(model, is_read=self._clock() < ends_at)
            if found is not None:
                models.setdefault(found.name, found)
        return tuple(models.values())

    def _described(self, model: ModelFolder, *, is_read: bool) -> ServedModel | None:
        """What there is to say about a model; None: it cannot be run. `is_read`: also what its files say."""
        found = served(model.name, model.path, (), guide=self._library.chosen.guide)
        found = replace(found, nbytes=model.nbytes, format=model.format)
        if not is_read:
            return found
        try:
            content = self._library.contents.read(model.path)
        except ModelError:
            return None
        return replace(
            found,
            context=content.context,
            parameters=content.parameters,
            family=str(content.config.get("model_type", "")),
            sees=content.sees,
        )

    # --- answers

    @property
    def is_asked(self) -> bool:
        """Whether requests are answered at this moment, or wait for their model."""
        return self._turns.is_used

    @contextmanager
    def turn(self, name: str | None) -> Iterator[ModelTurn]:
        """Have the model of this name for an answer, once `loading` is over; None: the loaded one."""
        with self._turns.of(name) as turn:
            yield turn

    async def loading(self, turn: ModelTurn) -> AsyncGenerator[Waiting | Loading, None]:
        """Yield what a request waits for, until its turn has come and its model is loaded.

        Raises:
            NotFoundError: there is no such model.
            PotluckError: it cannot be loaded. What the next prompt loads is what it was before.
        """
        async with aclosing(turn.come()) as places:
            async for waiting in places:
                yield waiting
        if self._master.is_ready and turn.model in (None, self.first().name):
            return
        loading = Loading(model=turn.model or self.first().name, fraction=0.0)
        yield loading
        work = asyncio.create_task(self._load(turn.model))
        async with aclosing(progress_of(work, self._master, self._activity)) as steps:
            async for step in steps:
                fraction = round(step.fraction, 2)
                if (fraction, step.message) != (loading.fraction, loading.message):
                    loading = replace(loading, fraction=fraction, message=step.message)
                    yield loading
        await work

    async def loaded(self, turn: ModelTurn) -> tuple[Deployment, LoadedModel]:
        """The plan in force and its model, after `loading`.

        Raises:
            NotFoundError: another model was loaded meanwhile.
        """
        deployment, generator = await self._master.ready(self._library.chosen.request)
        planned = deployment.planned
        if turn.model not in (None, planned.model.name):
            raise NotFoundError(f"{turn.model} is not loaded any more; {planned.model.name} is.")
        words = await self.words.of(planned.model)
        loaded = LoadedModel(
            text=words.text,
            defaults=words.defaults,
            pooling=words.pooling,
            generator=generator,
            stage_names=planned.pipeline_names,
            vocab_size=planned.model.config.vocab_size,
            tower=planned.model.config.tower,
            blind=planned.model.blind,
            pixels=self._pixels,
        )
        return deployment, loaded

    async def _load(self, name: str | None) -> None:
        if name in (None, self.first().name):
            await self._master.ready(self._library.chosen.request)
            return
        model = next((model for model in await self.list() if model.name == name), None)
        if model is None:
            raise ModelNotFoundError(f"The model “{name}” is not on this computer any more.")
        request = self._request(model)
        self._lent = request, replace(model, is_loaded=False)
        try:
            await self._master.load(request)
        except PotluckError:
            await self._master.give_back(request)
            raise

    def _request(self, model: ServedModel) -> PlanRequest:
        """How a model is loaded: the chosen one as it was chosen, another one as Potluck does it by itself."""
        chosen = self._library.chosen
        if model.name == chosen.served().name:
            return chosen.request
        return PlanRequest(model=model.aliases[-1])

    # --- memory

    async def look(self, idle_s: float | None) -> None:
        """Unload the model if it answered nobody for so long. Call it every second; None: it stays."""
        use = self._master.deployment, self._turns.count
        is_used = use != self._use or self._turns.is_used or not self._master.is_at_rest
        if is_used or use[0] is None:
            self._use, self._unused_since = use, self._clock()
        elif idle_s is not None and self._clock() - self._unused_since >= idle_s:
            logger.info("unloading the model: it answered nobody for %.0f seconds", idle_s)
            await self._master.unload()
