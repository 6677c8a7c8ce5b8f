"""Where the rows of a long page are."""

from hypothesis import given
from hypothesis import strategies as st

from potluck_app.views.widgets.heights import Heights


def test_rows_lie_one_below_the_other() -> None:
    heights = Heights(18)
    heights.insert(0, [10, 20, 30])

    assert [heights.start(row) for row in range(3)] == [18, 28, 48]
    assert heights.end == 78


def test_a_part_of_the_page_has_the_rows_that_reach_into_it() -> None:
    heights = Heights(0)
    heights.insert(0, [10, 10, 10, 10])

    assert heights.between(15, 25) == (1, 3)
    assert heights.between(10, 20) == (1, 2)
    assert heights.between(-50, 5) == (0, 1)
    assert heights.between(90, 95) == (4, 4)


def test_a_page_without_rows_ends_where_it_begins() -> None:
    assert Heights(18).end == 18
    assert Heights(18).between(0, 500) == (0, 0)


@given(
    st.lists(st.tuples(st.sampled_from("isr"), st.integers(0, 20), st.integers(0, 99)), max_size=30)
)
def test_starts_are_those_of_the_heights_whatever_changed(
    changes: list[tuple[str, int, int]],
) -> None:
    heights, plain = Heights(5), list[int]()
    for what, row, height in changes:
        place = min(row, len(plain))
        if what == "i":
            heights.insert(place, [height, height + 1])
            plain[place:place] = [height, height + 1]
        elif what == "s" and place < len(plain):
            heights[place] = height
            plain[place] = height
        elif what == "r":
            heights.remove(place, place + 2)
            del plain[place : place + 2]
        if height % 2:  # what is asked for in between is remembered
            assert heights.end == 5 + sum(plain)

    assert [heights.start(row) for row in range(len(plain))] == [
        5 + sum(plain[:row]) for row in range(len(plain))
    ]
