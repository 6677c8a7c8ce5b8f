from faults.judging import Verdict
from faults.report import Result, table


def result(
    kind: str, verdict: Verdict, next_token_s: float | None = None, **more: object
) -> Result:
    return Result(
        seed=7,
        kind=kind,
        model="llama",
        scheme="int4",
        sampled=True,
        sessions=3,
        plan="master=6 attic=6",
        what="attic: stage killed",
        verdict=verdict,
        next_token_s=next_token_s,
        **more,  # pyright: ignore[reportArgumentType]
    )


def test_the_table_counts_each_kind_and_has_median_and_worst_times() -> None:
    rows = table(
        [
            result("cut", "equal", 0.5),
            result("cut", "equal", 2.0),
            result("cut", "equal", 1.0),
            result("kill-stage", "error"),
            result("kill-stage", "lost", leaks=["attic: 2 parts of transfers"]),
        ]
    ).splitlines()

    assert [" ".join(row.split()) for row in rows[1:]] == [
        "cut 3 3 0 0 0 1.00 s 2.00 s - -",
        "kill-stage 2 0 1 1 1 - - - -",
        "all 5 3 1 1 1 1.00 s 2.00 s - -",
    ]


def test_a_line_has_the_seed_and_stands_out_if_the_run_was_lost() -> None:
    line = result("cut", "lost", why="a bare end after 2 tokens").line()

    assert line.split()[0] == "7"
    assert "LOST" in line
    assert "a bare end after 2 tokens" in line
