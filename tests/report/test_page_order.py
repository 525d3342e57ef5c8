"""What stands where on the pages: the answer first, the speed-up beside the name, room enough."""

import re
import shutil
from pathlib import Path

import pytest

from spec_bench.records.sittings import of_other_sitting
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.rows import groups_of, read_results
from spec_bench.report.page.build import build_index, style
from spec_bench.report.page.results_table import results_table
from spec_bench.report.plain import markdown, write_report
from spec_bench.vocabulary import names
from tests.report.rows import around, row, write

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "embedded"
MOST_BYTES = 1_000_000
RATES = {"token_rate": 57.8, "speedup": (1.0, 1.0, 1.0)}


def cells(count):
    """Plain decoding and so many decoders, each slower than the one before."""
    others = (row("sd", str(k), speedup=around(3.0 - k / count, 0.01)) for k in range(count))
    return [row("ar", **RATES), *others]


def page_of(folder, *rows):
    write(folder, "rsd-exp1", *rows)
    assert main(["page", "rsd-exp1", "--results", str(folder)]) == 0
    return (folder / "rsd-exp1" / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    rows = [row("ar", **RATES), row("sd", "2", speedup=around(1.4, 0.1), block_efficiency=2.0)]
    return page_of(tmp_path_factory.mktemp("results"), *rows)


def test_the_answer_comes_first_then_figure_claims_and_tables(page):
    parts = ('class="answer"', 'id="figures"', 'id="checks"', 'id="results"', 'id="paper"')
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


def test_the_speedup_stands_beside_the_decoders_name(page):
    heads = re.findall(r'<button type="button">([^<]*)</button>', page)
    assert heads[:2] == ["decoder", "speedup"]


def test_the_fastest_cell_stands_first_and_a_long_table_says_what_it_leaves_out(tmp_path):
    write(tmp_path, "own", *reversed(cells(50)))
    (group,) = groups_of(read_results(tmp_path / "own" / "results.csv"))
    table = results_table(group, 20)
    assert [line.tree for line in table.lines[:3]] == ["-", "0", "1"]
    assert (len(table.lines), table.left_out) == (20, 31)
    assert [line.cells[0].best for line in table.lines[:4]] == [False, True, False, False]  # type: ignore[union-attr]


def test_the_page_of_the_most_cells_is_below_a_megabyte(tmp_path):
    for name in ("results.csv", "screening.csv"):
        (tmp_path / "mcsd-search").mkdir(exist_ok=True)
        shutil.copy(COMMITTED / "mcsd-search" / name, tmp_path / "mcsd-search")
    assert main(["page", "mcsd-search", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "mcsd-search" / "page.html").stat().st_size < MOST_BYTES


def test_rows_can_be_filtered_by_decoder_without_a_library(page):
    assert '<input type="search" data-decoders' in page
    assert 'querySelector("input[data-decoders]")' in page
    assert "row.hidden = asked.length" in page


def test_every_table_scrolls_within_its_own_box(page):
    assert ".scroll { overflow-x: auto;" in style()
    tables = [page[: each.start()] for each in re.finditer("<table", page)]
    assert tables
    for before in tables:
        assert before.rstrip().endswith(('<div class="scroll">', "paper-table")) or (
            before.rfind('class="scroll"') > before.rfind("</table>")
        )


def test_paper_leaves_out_what_is_folded_and_says_where_it_is(page):
    printed = style().split("@media print")[1]
    assert "details" in printed.split("display: none")[0]
    assert "tbody tr:nth-child(n+13)" in printed
    assert 'class="printed">Printed are the best cells of each table' in page


def test_decoders_of_no_yaml_are_told_apart_by_colour_or_marker():
    decoders = [f"plug_in_{number}" for number in range(30)]
    shown = names.apart([*decoders, "sd", "eagle3_sd", "rsd_s"])
    looks = {(each.colour, each.marker, each.hollow) for each in shown.values()}
    assert len(looks) == len(shown) == 33
    assert len({each.colour for each in shown.values()}) > 3
    assert shown["sd"] == names.decoder("sd")
    assert shown["eagle3_sd"].hollow
    assert names.apart(decoders[:1])[decoders[0]] == names.decoder(decoders[0])


LATER = (
    row("ar", **RATES, block_efficiency=1.0),
    row("sd", "2", token_rate=86.7, speedup=(1.5, 1.4, 1.6)),
    row("spine", "3", token_rate=24.2, speedup=(0.68, 0.6, 0.7)),
)


def test_a_cell_of_another_sitting_is_marked_and_the_mark_explained(tmp_path):
    text = page_of(tmp_path, *LATER)
    rows = re.findall(r"<tr.*?</tr>", text.split('<table class="sortable">')[1])
    assert ["another sitting" in each for each in rows[1:4]] == [False, False, True]
    assert "times and rates of different sittings are not comparable" in text
    file = tmp_path / "rsd-exp1" / "results.csv"
    table = markdown(groups_of(read_results(file)), file)
    assert "| spine (another sitting) | 3 |" in table and "| sd | 2 |" in table
    assert table.count("- another sitting: ") == 1
    same = write(tmp_path, "same", *LATER[:2]) / "same" / "results.csv"
    assert "another sitting" not in markdown(groups_of(read_results(same)), same)


def test_table_and_console_end_with_the_same_sentence_once(tmp_path, capsys):
    folder = write(tmp_path, "own", *LATER) / "own"
    write_report(folder / "results.csv", folder)
    table, said = (folder / "table.md").read_text(encoding="utf-8"), capsys.readouterr().out
    last = table.splitlines()[-1].removeprefix("- ")
    assert last.startswith("XSum: use SD 2, 1.50×")
    assert said.splitlines()[-1] == last
    assert table.count(last) == said.count(last) == 1


def test_the_index_shows_what_each_experiment_comes_to(tmp_path):
    write(tmp_path, "own", *LATER)
    write(tmp_path, "counted", row("ar"))
    text = build_index(tmp_path)
    (said,) = re.findall(r'<p class="said">(.*?)</p>', text)
    assert said.startswith("XSum: use SD 2, 1.50×")


def test_a_sitting_is_told_by_a_speedup_that_is_no_quotient_of_the_rates():
    found = of_other_sitting(LATER)
    assert found == [False, False, True]
    assert of_other_sitting([row("sd", "2", speedup=2.0, token_rate=4.0)]) == [False]
    failed = row("sd", "4", status="failed")
    assert of_other_sitting([*LATER[:1], failed]) == [False, False]
