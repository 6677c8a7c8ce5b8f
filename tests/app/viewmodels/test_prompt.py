"""What of a conversation is sent."""

from potluck_app.chats.values import Attachment, Message, Stats
from potluck_app.viewmodels.prompt import fitting, tokens_used


def user(text: str) -> Message:
    return Message(role="user", text=text)


def reply(text: str) -> Message:
    return Message(role="assistant", text=text)


def test_pictures_go_with_their_message_and_take_room() -> None:
    picture = Attachment(name="a.png", picture="AAAA")
    asked = Message(role="user", text="What?", attachments=(picture,))
    earlier = [Message(role="user", text="Hi"), Message(role="assistant", text="Ho")]

    (sent,) = fitting([*earlier, asked], 2000)

    assert sent == asked
    assert fitting([*earlier, asked], 8000) == [*earlier, asked]


def test_of_more_pictures_than_a_request_may_have_the_oldest_are_named() -> None:
    def seen(name: str, characters: int) -> Message:
        pictures = (Attachment(name=name, picture="A" * characters),)
        return Message(role="user", text="Look", attachments=pictures)

    talk = [
        seen("old", 5 << 20),
        reply("a"),
        seen("new", 5 << 20),
        reply("b"),
        seen("now", 5 << 20),
    ]

    sent = fitting(talk, 0)

    assert [len(message.attachments) for message in sent] == [0, 0, 1, 0, 1]
    assert sent[0].text == "Look\n\n[picture: old]"
    assert fitting([seen("huge", 20 << 20)], 0)[0].attachments


def test_old_messages_are_left_out_where_the_context_is_full() -> None:
    talk = [user("a" * 600), reply("b" * 600), user("c" * 300), reply("d" * 300), user("now")]

    kept = fitting(talk, context=300)

    assert [m.text[0] for m in kept] == ["c", "d", "n"]


def test_what_is_asked_now_is_always_sent() -> None:
    assert fitting([user("a"), reply("b"), user("x" * 10_000)], context=100)[-1].text[0] == "x"


def test_the_first_message_that_is_sent_is_the_persons() -> None:
    talk = [user("a" * 700), reply("b" * 60), user("now")]

    assert [m.role for m in fitting(talk, context=300)] == ["user"]


def test_a_question_whose_reply_failed_is_not_sent_again() -> None:
    talk = [user("lost"), reply(""), user("now")]

    assert [m.text for m in fitting(talk, context=0)] == ["now"]


def test_thoughts_are_not_said_again() -> None:
    talk = [user("a"), reply("<think>hm</think>b"), user("<think> is a tag?")]

    assert [m.text for m in fitting(talk, context=0)] == ["a", "b", "<think> is a tag?"]


def test_an_attached_file_is_part_of_the_message() -> None:
    file = Attachment(name="a.py", text="print()")
    asked = Message(role="user", text="Why?", attachments=(file,))

    (sent,) = fitting([asked], context=0)

    assert sent.text == "Why?\n\na.py:\n```\nprint()\n```"


def test_the_system_prompt_takes_room() -> None:
    talk = [user("a" * 300), reply("b" * 60), user("now")]

    assert len(fitting(talk, context=200)) == 3
    assert len(fitting(talk, context=200, system="s" * 200)) == 1


def test_a_request_has_no_more_messages_than_the_node_takes() -> None:
    talk = [user("a"), reply("b")] * 3000

    sent = fitting(talk, context=0)

    assert 3000 < len(sent) < 4096
    assert sent[0].role == "user"


def test_what_is_used_is_what_the_node_counted_and_about_what_came_after() -> None:
    stats = Stats(tokens=10, tokens_per_s=1.0, time_to_first_token_s=1.0, prompt_tokens=100)
    counted = Message(role="assistant", text="b", stats=stats)

    picture = Message(role="user", text="", attachments=(Attachment(name="a", picture="AA"),))

    assert tokens_used([]) == 0
    assert tokens_used([counted, picture]) == 2158
    assert tokens_used([user("a" * 400), counted]) == 110
    assert tokens_used([user("a"), counted, user("c" * 80)]) == 130
