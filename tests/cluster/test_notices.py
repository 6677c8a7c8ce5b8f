"""Lines that end by themselves."""

import asyncio

from fake_time import run_at_once as run

from potluck.cluster.notices import LASTS_S, Notices


def test_lines_count_up_and_only_the_last_ones_stay() -> None:
    async def main() -> None:
        notices = Notices(lambda: None)
        for number in range(30):
            notices.add("info", f"Line {number}")
        assert [notice.id for notice in notices.all()] == list(range(11, 31))
        assert notices.all()[-1].text == "Line 29"

    run(main())


def test_a_line_is_over_after_a_while_and_a_worse_one_lasts_longer() -> None:
    async def main() -> None:
        notices = Notices(lambda: None)
        notices.add("info", "The laptop computes as fast as before.")
        notices.add("warning", "The laptop stopped answering.")
        await asyncio.sleep(LASTS_S["info"])
        assert [notice.level for notice in notices.all()] == ["warning"]
        await asyncio.sleep(LASTS_S["warning"])
        assert notices.all() == ()
        notices.add("info", "Again.")
        assert notices.all()[0].id == 3  # else the window takes it for one that was dismissed

    run(main())


def test_clients_are_told_when_a_line_comes_and_when_it_is_over() -> None:
    async def main() -> None:
        shown: list[int] = []
        notices = Notices(lambda: shown.append(len(notices.all())))
        notices.add("error", "The compute process ended.")
        await asyncio.sleep(LASTS_S["error"])

        assert shown == [1, 0]

    run(main())


def test_a_line_about_a_computer_that_was_away_is_over_when_it_is_back() -> None:
    async def main() -> None:
        notices = Notices(lambda: None)
        notices.add("warning", "Mac stopped answering.", frozenset({"Mac", "Desk"}))
        notices.add("warning", "Machine is slow.", frozenset({"Mac"}))
        notices.add("warning", "Mac computes slowly.")  # it was there
        assert len(notices.all({"Desk"})) == 3

        left = [notice.text for notice in notices.all({"Desk", "Mac"})]

        assert left == ["Machine is slow.", "Mac computes slowly."]

    run(main())
