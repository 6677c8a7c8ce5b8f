"""What is said in a chat: answers of all kinds, pictures, and what can go wrong."""

from msgspec.structs import replace
from PySide6.QtCore import QUrl
from PySide6.QtWidgets import QWidget
from screenshots import home, talk
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.errors import NotEnoughMemoryError
from potluck_app.chats.attachments import attach
from potluck_app.chats.values import Attachment, Draft
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.chips import Thumbnail
from potluck_app.views.widgets.prose import ProseView


@scene
def chat_rich(stage: Stage) -> QWidget:
    """An answer with headings, a table, lists, formulas and code."""
    return stage.talking(talk.chat("Tides", talk.question("Why are there tides?"), talk.RICH))


@scene
def chat_thoughts(stage: Stage) -> QWidget:
    """An answer whose thoughts are unfolded above it."""
    window = stage.talking(
        talk.chat("A prime number", talk.question("Is 391 a prime?"), talk.THOUGHTFUL)
    )
    reply = window.chat.transcript.last_reply()
    assert reply is not None
    reply.thinking.unfold()
    return window


@scene
def chat_failed(stage: Stage) -> QWidget:
    """An answer that ended because a computer was lost and the others have too little memory."""
    return stage.talking(talk.chat("Letter", talk.question("Translate this."), talk.FAILED))


@scene
def chat_failed_model(stage: Stage) -> QWidget:
    """A message that could not be answered, because the model does not fit."""
    failed = replace(talk.FAILED, text="", code=NotEnoughMemoryError.code, error=talk.TOO_BIG)
    return stage.talking(talk.chat("Letter", talk.question("Translate this."), failed))


@scene
def chat_cut(stage: Stage) -> QWidget:
    """An answer that ended at its limit of tokens, and can go on."""
    cut = replace(talk.STOPPED, status="done", cut=True)
    return stage.talking(talk.chat("Letter", talk.question("Translate this."), cut))


@scene
def chat_link(stage: Stage) -> QWidget:
    """The question before a link to a page opens that is not encrypted."""
    window = stage.talking()
    window.findChildren(ProseView)[0]._on_link(QUrl("http://example.org/tides"))
    return stage.dialog()


@scene
def chat_stopped(stage: Stage) -> QWidget:
    """An answer that was stopped, with what had been written until then."""
    return stage.talking(talk.chat("Letter", talk.question("Translate this."), talk.STOPPED))


@scene
def chat_files(stage: Stage) -> QWidget:
    """A question with files attached."""
    files = (
        Attachment(name="chunks.py", text=talk.REPLY),
        Attachment(name="a rather long name of a file.md", text="-"),
    )
    asked = replace(talk.question("What do these do?"), attachments=files)
    return stage.talking(talk.chat("Files", asked, talk.ANSWER))


@scene
def chat_picture(stage: Stage) -> QWidget:
    """A question with a picture, and another picture and a file ready to be sent."""
    asked = replace(talk.question("Where was this?"), attachments=(talk.photo("IMG_2041.jpg"),))
    window = stage.talking(talk.chat("A lake", asked, talk.SEEN))
    files = (talk.photo("IMG_2042.jpg", hue=20), Attachment(name="notes.md", text="-"))
    window.chat.composer.show_draft(Draft(text="And this one?", attachments=files))
    return window


@scene
def chat_picture_unseen(stage: Stage) -> QWidget:
    """A picture that cannot be sent, because the model reads only text."""
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
    """A question with three pictures of different shapes."""
    return _pictures(stage)


@scene
def chat_picture_enlarged(stage: Stage) -> QWidget:
    """A picture of a message, enlarged over the window."""
    window = _pictures(stage)
    window.findChildren(Thumbnail)[0].enlarge()
    return window


@scene
def chat_waiting(stage: Stage) -> QWidget:
    """A message that waits while the model is sent to another computer."""
    window = stage.main()
    stage.backend.say(home.home(streaming=True))
    stage.chat.send("Plan a week of dinners for four, nothing with nuts.")
    return window


@scene
def chat_reading(stage: Stage) -> QWidget:
    """A message that the model is reading."""
    window = stage.talking()
    stage.chat.send("And for an iterator?")
    return window


@scene
def chat_reading_long(stage: Stage) -> QWidget:
    """A long message, and how far the model has read it."""
    window = stage.talking()
    stage.chat.send("And for an iterator?")
    stage.backend.say(home.generating(home.home()))
    stage.backend.replies[-1].waits.emit("reading, 5600 of 9000 tokens")
    return window


@scene
def chat_queued(stage: Stage) -> QWidget:
    """A message that waits, because the computers are writing other answers."""
    window = stage.talking()
    stage.chat.send("And for an iterator?")
    stage.backend.say(home.generating(home.home(), waiting=2))
    stage.backend.replies[-1].waits.emit("waiting, place 2, about 40 s")
    return window


@scene
def chat_writing(stage: Stage) -> QWidget:
    """An answer while it is written, with Stop in place of Send."""
    window = stage.talking()
    stage.chat.send("And for an iterator?")
    stage.backend.say(home.generating(home.home()))
    stage.backend.replies[-1].text.emit("Python 3.12 has `itertools.batched(iterable, n)`. For")
    return window


@scene
def chat_too_long(stage: Stage) -> QWidget:
    """A message that is too long for the model, and what can be done."""
    asked = talk.question("Here is my whole diary. " + "It rained again. " * 500)
    window = stage.talking(talk.chat("Diary", asked, talk.TOO_LONG))
    stage.backend.say(home.with_context(home.home(), 2048))
    return window


@scene
def chat_full(stage: Stage) -> QWidget:
    """A chat that nearly fills the context of the model, and what can be done."""
    window = stage.talking()
    stage.backend.say(home.with_context(home.home(), 3200))
    return window


@scene
def chat_full_longer(stage: Stage) -> QWidget:
    """What a longer context would take, before the model is loaded again."""
    window = stage.talking()
    stage.backend.say(home.with_context(home.home(), 3200))
    window.chat.advice.act("longer")
    stages = tuple(replace(each, memory=each.memory + 10**9) for each in home.PLAN.stages)
    window.chat.advice._on_plan(replace(home.PLAN, context=8192, stages=stages))
    return window


@scene
def chat_notice(stage: Stage) -> QWidget:
    """A line that says that a computer stopped answering."""
    window = stage.talking()
    stage.backend.say(home.with_notice(home.home()))
    return window


@scene
def chat_restarting(stage: Stage) -> QWidget:
    """The chat while Potluck starts again after it stopped in the background."""
    window = stage.talking()
    stage.backend.lose()
    return window


@scene
def chat_formulas(stage: Stage) -> QWidget:
    """An answer with formulas."""
    asked = talk.question("How do I solve a quadratic equation?")
    return stage.talking(talk.chat("Quadratic", asked, talk.FORMULAS))


@scene
def chat_thoughts_folded(stage: Stage) -> QWidget:
    """An answer whose thoughts are folded away."""
    return stage.talking(
        talk.chat("A prime number", talk.question("Is 391 a prime?"), talk.THOUGHTFUL)
    )


@scene
def chat_thinking(stage: Stage) -> QWidget:
    """A model that thinks before it answers."""
    window = stage.talking()
    stage.chat.send("Is 391 a prime?")
    stage.backend.say(home.generating(home.home()))
    stage.backend.replies[-1].text.emit(talk.THOUGHTFUL.text.partition("</think>")[0])
    return window


@scene
def chat_loading(stage: Stage) -> QWidget:
    """A message that waits while the computers load the model."""
    window = stage.main()
    stage.backend.say(home.loading(home.home()))
    stage.chat.send("Plan a week of dinners for four, nothing with nuts.")
    return window


@scene
def chat_lost(stage: Stage) -> QWidget:
    """A computer is lost in the middle of an answer, which the others go on with."""
    window = stage.talking()
    stage.chat.send("And for an iterator?")
    stage.backend.say(home.generating(home.with_notice(home.without_old_laptop())))
    stage.backend.replies[-1].text.emit("Python 3.12 has `itertools.batched(iterable, n)`. For")
    return window


@scene
def chat_interrupted(stage: Stage) -> QWidget:
    """An answer that ended because Potluck stopped in the background again and again."""
    return stage.talking(talk.chat("Letter", talk.question("Translate this."), talk.INTERRUPTED))


@scene
def chat_unkept(stage: Stage) -> QWidget:
    """The chats cannot be kept, because their file cannot be read."""
    window = stage.talking()
    stage.chat._on_unkept(talk.UNKEPT)
    return window


@scene
def chat_refused(stage: Stage) -> QWidget:
    """A command that failed: the line says why."""
    window = stage.talking()
    stage.backend.problem.emit(NotEnoughMemoryError(46_000_000_000, 24_600_000_000).message)
    return window


@scene
def chat_long_message(stage: Stage) -> QWidget:
    """A long message of one's own, which is folded."""
    asked = talk.question("Here is my whole diary. " + "It rained again, and we stayed in. " * 120)
    window = stage.talking(talk.chat("Diary", asked, talk.ANSWER))
    window.chat.transcript.reveal(0, "")
    return window


@scene
def chat_message_too_large(stage: Stage) -> QWidget:
    """A message that is too large to be sent at all."""
    window = stage.talking()
    window.chat.composer.show_draft(Draft(text="It rained again, and we stayed in. " * 6000))
    window.chat.composer._submit()
    return window


@scene
def chat_file_refused(stage: Stage) -> QWidget:
    """Files that cannot be attached, and why."""
    window = stage.talking()
    files = [stage.file("Contract.pdf"), stage.file("Holiday.mov")]
    window.chat.composer._on_read(*attach(files, (), lambda _data: None))
    return window


@scene
def chat_summary(stage: Stage) -> QWidget:
    """The model writes a summary, with which a new chat begins."""
    window = stage.talking()
    stage.backend.say(home.with_context(home.home(), 3200))
    window.chat.advice.act("summary")
    return window


@scene
def chat_versions(stage: Stage) -> QWidget:
    """A question of which there are two versions, each with its answer."""
    known = talk.chat("Letter", talk.question("Translate this."), talk.STOPPED)
    again = (
        replace(talk.question("Translate this into French."), id="q2"),
        replace(talk.FRENCH, id="r2", parent="q2"),
    )
    return stage.talking(replace(known, messages=(*known.messages, *again), leaf="r2"))
