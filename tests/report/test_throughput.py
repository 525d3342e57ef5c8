"""Speed against throughput and where speculation stops paying; the front that no point beats."""

import pandas as pd
import pytest

from spec_bench.report.figures.panels import select_pareto_front
from spec_bench.report.figures.throughput import (
    describe_crossing,
    draw_and_format_throughput,
    split_throughput_lines,
)
from spec_bench.system.files import get_data_folder

BATCHES = get_data_folder("results") / "embedded/redrafter-batches/results.csv"


@pytest.mark.parametrize(
    ("points", "said"),
    [
        # halfway in log2 between 4 and 16
        ([(1, 2.0, 1.8, 2.2), (4, 1.5, 0.9, 2.1), (16, 0.5, 0.4, 0.6)],
         "the speed-up is 1 at about 8.0 requests together "
         "(surely above at 1, surely below at 16)"),
        ([(1, 2.0, 1.9, 2.1), (2, 1.2, 0.9, 1.4)], "pays up to 2 requests together, surely at 1"),
        ([(1, 0.9, 0.8, 1.1), (2, 0.5, 0.4, 0.6)], "pays at none of 1, 2 requests together"),
        ([(1, 2.0, 1.9, 2.1)], ""),
    ],
)  # fmt: skip
def test_the_crossing_is_read_off_between_the_two_sizes_around_it(points, said):
    assert describe_crossing(points) == said


def test_a_line_is_one_decoder_by_requests_together_and_paths_as_rows_are_another():
    rows = pd.read_csv(BATCHES)
    lines = split_throughput_lines(rows.query("seed == 0"))
    titles = [title for _, title, _ in lines]
    assert len(titles) == len({*titles})
    beams = "ReDrafter, exact match (redrafter) 8x5"
    assert {title for title in titles if "8x5" in title} == {beams, f"{beams}, paths as rows"}
    assert all(list(line.batch_size) == [1, 2, 4, 8, 16, 32] for *_, line in lines)
    with pytest.raises(ValueError, match="nothing was timed"):
        split_throughput_lines(rows.assign(token_rate_per_request=None))


def test_table_and_figure_are_made_of_the_rows(tmp_path):
    for name in ("results.csv", "records.parquet"):
        (tmp_path / name).write_bytes(BATCHES.with_name(name).read_bytes())
    said = draw_and_format_throughput(tmp_path / "results.csv")
    assert (tmp_path / "throughput.png").stat().st_size > 10_000
    assert "RSD-S 4x3: the speed-up is 1 at about" in said
    assert said.count("\n AR ") == 6


# Speed to the right, score upwards: 0 is slow and good, 3 fast and bad, 2 beaten by 1.
POINTS = [(1.0, 9.0), (3.0, 7.0), (2.0, 6.0), (5.0, 1.0)]


@pytest.mark.parametrize(
    ("points", "higher_x", "higher_y", "expected"),
    [
        (POINTS, True, True, [0, 1, 3]),
        (POINTS[::-1], True, True, [3, 2, 0]),  # along x, whatever the order given
        (POINTS, True, False, [3]),  # the fastest has the lowest y as well
        (POINTS, False, True, [0]),
        (POINTS, False, False, [0, 2, 3]),
        ([(1.0, 1.0), (1.0, 1.0)], True, True, [0]),  # of equal points the first
        ([(1.0, 1.0), (1.0, 2.0)], True, True, [1]),
        ([(1.0, 2.0), (2.0, 2.0)], True, True, [1]),
        ([(1.0, 2.0), (2.0, 2.0)], False, True, [0]),
        ([(0.5, 0.5)], False, False, [0]),
        ([], True, True, []),
    ],
)
def test_the_front_is_what_no_other_point_beats(points, higher_x, higher_y, expected):
    names = {True: "token_rate", False: "energy_j_per_token"}, {True: "mbsu", False: "perplexity"}
    x, y = (name[higher] for name, higher in zip(names, (higher_x, higher_y), strict=True))
    rows = pd.DataFrame(points, columns=[x, y], dtype=float)
    assert list(select_pareto_front(rows, x, y).index) == expected
