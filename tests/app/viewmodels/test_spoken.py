"""What a screen reader says of a reply while it grows."""

from potluck_app.viewmodels.spoken import Spoken


def test_each_sentence_is_said_once_when_it_is_whole() -> None:
    spoken = Spoken()
    text = "It is 3.5 m. And then?\nA list: *one"

    said = [spoken.more(text[:end], is_done=False) for end in range(len(text) + 1)]
    rest = spoken.more(text, is_done=True)

    assert [each for each in said if each] == ["It is 3.5 m.", "And then?", "A list:"]
    assert rest == "*one"
    assert spoken.more(text, is_done=True) == ""
