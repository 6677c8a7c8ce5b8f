"""The first start, and the chat in all its states."""

from collections.abc import Sequence

from msgspec.structs import replace
from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QWidget
from screenshots import home, models, talk
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.hub import HubAnswer
from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Attachment, Draft, Hit, Settings
from potluck_app.views.chips import Thumbnail
from potluck_app.views.main_window import MainWindow


@scene
def first(stage: Stage) -> QWidget:
    stage.backend.say(home.alone())
    return stage.main(is_first=True)


@scene
def chat_starting(stage: Stage) -> QWidget:
    return stage.main()


@scene
def chat_empty(stage: Stage) -> QWidget:
    stage.backend.say(home.alone())
    return stage.main()


@scene
def chat_suggestion(stage: Stage) -> QWidget:
    stage.backend.say(home.alone())
    window = stage.main()
    window.library._on_models(())
    window.library._on_recommended(HubAnswer(models=models.RECOMMENDED))
    return window


@scene
def chat(stage: Stage) -> QWidget:
    return stage.talking()


@scene
def chat_rich(stage: Stage) -> QWidget:
    return stage.talking(talk.chat("Tides", talk.question("Why are there tides?"), talk.RICH))


@scene
def chat_thoughts(stage: Stage) -> QWidget:
    window = stage.talking(talk.chat("Bridge", talk.question("Is 391 a prime?"), talk.THOUGHTFUL))
    reply = window.chat.transcript.last_reply()
    assert reply is not None
    reply.thinking.unfold()
    return window


@scene
def chat_failed(stage: Stage) -> QWidget:
    return stage.talking(talk.chat("Letter", talk.question("Translate this."), talk.FAILED))


@scene
def chat_stopped(stage: Stage) -> QWidget:
    return stage.talking(talk.chat("Letter", talk.question("Translate this."), talk.STOPPED))


@scene
def chat_files(stage: Stage) -> QWidget:
    files = (
        Attachment(name="chunks.py", text=talk.REPLY),
        Attachment(name="a rather long name of a file.md", text="-"),
    )
    asked = replace(talk.question("What do these do?"), attachments=files)
    return stage.talking(talk.chat("Files", asked, talk.ANSWER))


@scene
def chat_picture(stage: Stage) -> QWidget:
    asked = replace(talk.question("Where was this?"), attachments=(talk.photo("IMG_2041.jpg"),))
    window = stage.talking(talk.chat("A lake", asked, talk.SEEN))
    files = (talk.photo("IMG_2042.jpg", hue=20), Attachment(name="notes.md", text="-"))
    window.chat.composer.show_draft(Draft(text="And this one?", attachments=files))
    return window


@scene
def chat_picture_unseen(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.say(home.blind(home.home()))
    window.chat.composer.show_draft(
        Draft(text="Where was this?", attachments=(talk.photo("IMG_2041.jpg"),))
    )
    return window


def _pictures(stage: Stage) -> MainWindow:
    photos = (
        talk.photo("IMG_2041.jpg"),
        talk.photo("a rather long name of a photo.jpg", 600, 900, hue=20),
        talk.photo("panorama.jpg", 1600, 320, hue=120),
    )
    asked = replace(talk.question("Where were these?"), attachments=photos)
    return stage.talking(talk.chat("A lake", asked, talk.SEEN))


@scene
def chat_pictures(stage: Stage) -> QWidget:
    return _pictures(stage)


@scene
def chat_picture_enlarged(stage: Stage) -> QWidget:
    window = _pictures(stage)
    window.findChildren(Thumbnail)[0].enlarge()
    return window


@scene
def chat_waiting(stage: Stage) -> QWidget:
    window = stage.main()
    stage.backend.say(home.home(streaming=True))
    stage.chat.send("Plan a week of dinners for four, nothing with nuts.")
    return window


@scene
def chat_reading(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.chat.send("And for an iterator?")
    return window


@scene
def chat_writing(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.chat.send("And for an iterator?")
    stage.backend.say(home.generating(home.home()))
    stage.backend.replies[-1].text.emit("Python 3.12 has `itertools.batched(iterable, n)`. For")
    return window


@scene
def chat_options(stage: Stage) -> QWidget:
    window = stage.talking()
    window.chat.toggle_options()
    stage.chat.set_settings(Settings(system="Answer briefly.", temperature=0.2, top_p=0.9))
    return window


@scene
def chat_options_advanced(stage: Stage) -> QWidget:
    window = stage.talking()
    window.chat.toggle_options()
    stage.chat.set_settings(Settings(temperature=0.2))
    window.chat.drawer.show_advanced(True)
    return window


@scene
def chat_presets(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.chat.presets.save("Short answers", stage.chat.settings)
    return window.chat.drawer.presets_menu()


@scene
def chat_list(stage: Stage) -> QWidget:
    window = stage.talking()
    window.chat.toggle_list()
    return window


@scene
def chat_list_menu(stage: Stage) -> QWidget:
    sidebar = stage.talking().chat.sidebar
    return sidebar.menu_for(stage.chat.list.index_of(stage.known[1].id))


@scene
def chat_list_rename(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.chat.pin(stage.known[3].id, True)
    if not window.chat.sidebar.isVisible():
        window.chat.toggle_list()
    stage.settle()
    window.chat.sidebar._edit(stage.known[1].id)
    return window


@scene
def chat_edit(stage: Stage) -> QWidget:
    window = stage.talking()
    page = window.chat
    page.edit_last()
    files = (Attachment(name="chunks.py", text=talk.REPLY), Attachment(name="notes.md", text="-"))
    page.composer.show_draft(Draft(text="Why does this fail?", attachments=files))
    page.sidebar.toast.offer("Deleted: Old recipes")
    return window


@scene
def chat_edit_reply(stage: Stage) -> QWidget:
    window = stage.talking()
    reply = window.chat.transcript.last_reply()
    assert reply is not None
    reply.open_editor()
    return window


def _found(stage: Stage, window: MainWindow, hits: Sequence[Hit]) -> None:
    """Show these hits for the word "slice", without a search in the file of the chats."""
    if not window.chat.sidebar.isVisible():
        window.chat.toggle_list()
    with QSignalBlocker(window.chat.sidebar.search):
        window.chat.sidebar.search.setText("slice")
    stage.chat._searched = "slice"
    stage.chat._on_found("slice", hits)


@scene
def chat_search(stage: Stage) -> QWidget:
    window = stage.talking()
    newest, other = stage.known[0], stage.known[1]
    excerpt = "…Use a slice in a generator, it works for any sequence"
    found = [
        Hit(chat=other.id, title=other.title),
        Hit(chat=newest.id, title=newest.title, message="r2", excerpt=excerpt),
    ]
    _found(stage, window, found)
    stage.chat.messages.reset(stage.chat._shown.tree if stage.chat._shown else Tree())
    stage.chat.revealed.emit(1, "slice")
    return window


@scene
def chat_search_empty(stage: Stage) -> QWidget:
    window = stage.talking()
    _found(stage, window, [])
    return window


@scene
def chat_find(stage: Stage) -> QWidget:
    window = stage.talking()
    window.chat.find_bar.open_bar()
    window.chat.find_bar.text.setText("list")
    return window


@scene
def chat_full(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.say(home.with_context(home.home(), 3200))
    return window


@scene
def chat_full_longer(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.say(home.with_context(home.home(), 3200))
    window.chat.advice.act("longer")
    stages = tuple(replace(each, memory=each.memory + 10**9) for each in home.PLAN.stages)
    window.chat.advice._on_plan(replace(home.PLAN, context=8192, stages=stages))
    return window


@scene
def chat_too_long(stage: Stage) -> QWidget:
    asked = talk.question("Here is my whole diary. " + "It rained again. " * 60)
    return stage.talking(talk.chat("Diary", asked, talk.TOO_LONG))


@scene
def chat_notice(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.say(home.with_notice(home.home()))
    return window


@scene
def chat_restarting(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.lose()
    return window


@scene
def chat_shortcuts(stage: Stage) -> QWidget:
    return stage.talking().show_shortcuts()


@scene
def chat_models(stage: Stage) -> QWidget:
    window = stage.talking()
    window.library._on_models(models.MODELS_HERE)
    return window.chat.model.menu()
