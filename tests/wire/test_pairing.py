"""What both ways of pairing share."""

from potluck.wire.pairing import SENTENCES


def test_every_refusal_is_a_sentence_for_a_person() -> None:
    for sentence in SENTENCES.values():
        assert sentence[0].isupper()
        assert sentence.endswith(".")
