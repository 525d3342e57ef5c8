"""A page of an experiment, its tables and the index: a file each, nothing fetched, all on it."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spec_bench.records.sittings import of_other_sitting
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.rows import groups_of, read_results
from spec_bench.report.page.build import build_index
from spec_bench.report.page.gather import results_file
from spec_bench.report.page.results_table import results_table
from spec_bench.report.plain import markdown, write_report
from spec_bench.vocabulary import names
from tests.report.rows import EMBEDDED, around, row, write

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "embedded"
FAILURE = "RuntimeError: went wrong"
SAID = "RSD-S strictly outperforms both SD and SpecTr for all performance metrics"
LATER = (
    row("ar", token_rate=57.8, speedup=(1.0, 1.0, 1.0), block_efficiency=1.0),
    row("sd", "2", token_rate=86.7, speedup=(1.5, 1.4, 1.6)),
    row("spine", "3", token_rate=24.2, speedup=(0.68, 0.6, 0.7)),
)


def measured(folder):
    rates = {"token_rate": (50.0, 49.0, 51.0)}
    return write(
        folder,
        "rsd-exp1",
        row("ar", "-", block_efficiency=1.0, token_rate=40.0, speedup=1.0),
        row("sd", "2", **rates, block_efficiency=(2.0, 1.9, 2.1), speedup=(1.4, 1.3, 1.5)),
        row("rsd_s", "3x2", **rates, block_efficiency=(2.5, 2.4, 2.6), speedup=(1.8, 1.7, 1.9)),
        row("rsd_c", "2-2", lossless="simulated", block_efficiency=2.4, speedup=9.0),
        row("spectr", "3x2", status="failed", reason=f"{FAILURE} (trace: runs/1)", lossless=""),
    )


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """What one command writes of an experiment of a paper and of one of no paper."""
    folder = measured(tmp_path_factory.mktemp("results"))
    write(folder, "mine", row("ar", "-", block_efficiency=1.0), row("sd", "2", speedup=1.2))
    assert main(["all", "--results", str(folder)]) == 0
    return folder


@pytest.fixture
def page(everything):
    return (everything / "rsd-exp1" / "page.html").read_text()


def page_of(folder, *rows, name="rsd-exp1"):
    write(folder, name, *rows)
    assert main(["page", name, "--results", str(folder)]) == 0
    return (folder / name / "page.html").read_text(encoding="utf-8")


def group_of(folder, *rows):
    file = write(folder, "mine", *rows) / "mine" / "results.csv"
    (group,) = groups_of(read_results(file))
    return group, file


def test_an_experiment_is_named_by_its_name_its_folder_or_its_file(everything):
    folder = everything / "rsd-exp1"
    for name in (folder.name, str(folder), str(folder / "results.csv")):
        assert results_file(name, everything) == folder / "results.csv"


def test_a_page_asks_for_nothing_over_the_network_and_is_well_formed(page):
    assert "http:" not in page and "https:" not in page and "//cdn" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "@import" not in page and "url(" not in page
    assert 'src="data:image/png;base64,iVBOR' in page
    opened = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in {"meta", "img", "input", "path", "circle", "br"}:
                opened.append(tag)

        def handle_endtag(self, tag):
            if tag not in {"path", "circle"}:
                assert opened.pop() == tag

    Checker().feed(page)
    assert not opened


def test_the_answer_comes_first_then_figure_claims_and_tables(page):
    parts = ('class="answer">XSum: use RSD-S 3x2, 1.80×', 'id="figures"', 'id="checks"',
             'id="results"', 'id="rsd-1"', "29 of 33")  # fmt: skip
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert '<td class="number paper">2.166</td><td class="number ours">2.000' in page


def test_every_cell_stands_on_the_page_with_its_interval_or_its_failure(page):
    table = page.split('<table class="sortable">')[1].split("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", table.split("<tbody>")[1])
    assert len(rows) == 5
    assert '<span class="mark">simulated</span>' in rows[1]
    assert 'data-value="2.5"' in rows[2] and "<small>2.40–2.60</small>" in rows[2]
    assert f"failed: {FAILURE}" in rows[4] and "data-value" not in rows[4]


def test_a_claim_stands_below_the_papers_sentence_and_its_section(page):
    checks = page.split('<section id="checks">')[1].split("</section>")[0]
    assert f"“{SAID}” <span>Section 5.1</span>" in checks
    counts, below = checks.split(SAID)[1:3]
    assert '<td class="number">2</td>' in counts.split("</tr>")[0]
    assert "rsd_s &gt; sd in token rate" in below.split("<tbody>")[0]
    assert "best trees" not in below.split("<tbody>")[0]


def test_an_experiment_of_no_paper_has_a_page_too_where_it_is_asked_for(everything, tmp_path):
    file, path = everything / "mine" / "results.csv", tmp_path / "out" / "mine.html"
    assert main(["page", str(file), "--output", str(path), "--results", str(tmp_path)]) == 0
    assert "an own experiment" in path.read_text()


def test_names_from_results_are_escaped(tmp_path):
    bad = row("sd", "2", pair="<script>x</script>", block_efficiency=1.0)
    assert "<script>x" not in page_of(tmp_path, bad, name="mine")


def test_one_command_writes_page_tables_and_figures_and_again_gives_the_same(everything):
    def written():
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    folder = everything / "rsd-exp1"
    first, figure = written(), "figures/rsd-fig6-llama2_7b"
    tables = (f"tables/rsd-1.{end}" for end in ("md", "csv", "tex"))
    assert {*first} == {"page.html", "results.csv", f"{figure}.png", f"{figure}.pdf", *tables}
    assert main(["all", "rsd-exp1", "--results", str(everything)]) == 0
    assert written() == first


def test_an_experiment_without_tables_counts_its_figures_cells(tmp_path):
    own = {"pair": "opt_13b", "task": "squad", "temperature": 1.0, "top_k": 10, "top_p": 0.8}
    text = page_of(tmp_path, row("sd", "3", token_rate=30.0, **own), name="dsbd-fronts")
    assert "26 of 27" in text
    assert "spec-bench -m dsbd=fronts pair=opt_13b engine=cuda task=squad,spider" in text


def test_a_page_of_small_models_says_so_and_has_the_looks_of_its_own_decoders(page, tmp_path):
    assert 'class="notice"' not in page
    rows = [row(name, "2", **EMBEDDED, speedup=1.2) for name in ("sd", "theirs")]
    text = page_of(tmp_path, *rows)
    notice, rest = text.split('<p class="notice">')[1].split("</p>", 1)
    assert notice.startswith("Measured on small models") and "not the paper" in notice
    assert 'class="tiles"' in rest
    for name in ("sd", "theirs"):
        colour = names.decoder(name).colour
        assert f"--{name}: {colour.light};" in text and f"--{name}: {colour.dark};" in text
        assert f".dot.{name} {{ background: var(--{name}); clip-path: " in text
    assert "--rsd_s:" not in text


def test_decoders_of_no_yaml_are_told_apart_by_colour_or_marker():
    decoders = [f"plug_in_{number}" for number in range(30)]
    shown = names.apart([*decoders, "sd", "eagle3_sd", "rsd_s"])
    assert len({(each.colour, each.marker, each.hollow) for each in shown.values()}) == 33
    assert len({each.colour for each in shown.values()}) > 3
    assert shown["sd"] == names.decoder("sd") and shown["eagle3_sd"].hollow
    assert names.apart(decoders[:1])[decoders[0]] == names.decoder(decoders[0])


def test_the_page_of_the_most_cells_is_below_a_megabyte(tmp_path):
    (tmp_path / "mcsd-search").mkdir()
    for name in ("results.csv", "screening.csv"):
        shutil.copy(COMMITTED / "mcsd-search" / name, tmp_path / "mcsd-search")
    assert main(["page", "mcsd-search", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "mcsd-search" / "page.html").stat().st_size < 1_000_000


def test_the_index_has_every_experiment_with_its_page_answer_and_picture(everything):
    index = (everything / "index.html").read_text()
    assert "http:" not in index and "https:" not in index and "@import" not in index
    assert 'src="data:image/png;base64,' in index
    links = re.findall(r'href="([^"#]+)"', index)
    assert all((everything / link).is_file() for link in links)
    pages = ("mine/page.html", "rsd-exp1/page.html")
    assert {*pages, "rsd-exp1/figures/rsd-fig6-llama2_7b.png", "rsd-exp1/tables/rsd-1.md"} <= {
        *links
    }
    assert "llama2_7b · XSum · 4 cells" in index.split(pages[1])[1]


def test_the_index_links_no_page_that_is_not_there_and_tells_an_answer_where_there_is_one(tmp_path):
    write(tmp_path, "own", *LATER)
    write(tmp_path, "counted", row("ar"))
    text = build_index(tmp_path)
    assert "<h3>own</h3>" in text
    (said,) = re.findall(r'<p class="said">(.*?)</p>', text)
    assert said.startswith("XSum: use SD 2, 1.50×")


def test_table_and_console_end_with_the_same_sentence_once(tmp_path, capsys):
    folder = write(tmp_path, "own", *LATER) / "own"
    write_report(folder / "results.csv", folder)
    table, said = (folder / "table.md").read_text(encoding="utf-8"), capsys.readouterr().out
    last = table.splitlines()[-1].removeprefix("- ")
    assert last.startswith("XSum: use SD 2, 1.50×")
    assert said.splitlines()[-1] == last
    assert table.count(last) == said.count(last) == 1


def test_a_sitting_is_told_by_a_speedup_that_is_no_quotient_of_the_rates():
    assert of_other_sitting(LATER) == [False, False, True]
    assert of_other_sitting([row("sd", "2", speedup=2.0, token_rate=4.0)]) == [False]
    assert of_other_sitting([*LATER[:1], row("sd", "4", status="failed")]) == [False, False]


STALLED = "stalled: 2 of 90 windows, median says 1.04"
BEAMS = row("dsbd", "4x2@0.9", lossless="exact_beam", speedup=(1.9, 1.8, 2.0))
SLOW = row("sd", "3", speedup=0.7, reason=f"speedup: {STALLED}; later_turns: 1")
FEW = (row("sd", "2", speedup=(1.4, 1.3, 1.5)), row("rsd_c", "2-1", speedup=(1.2, 1.1, 1.25)))
MARKED = [  # a mark, the row that has it, what the table says of it, and other rows
    ("another sitting", LATER[2], "another sitting: ", LATER[:2]),
    ("beam law", BEAMS, "beam law: exact for the law of beam decoding", FEW),
    ("stalled", SLOW, f"xsum: speedup of sd 3: {STALLED}", [row("ar", "-", speedup=1.0)]),
]


@pytest.mark.parametrize(("mark", "marked", "why", "others"), MARKED)
def test_a_row_that_does_not_compare_is_marked_explained_and_not_the_best(
    mark, marked, why, others, tmp_path
):
    group, file = group_of(tmp_path, *others, marked)
    text = markdown([group], file)
    assert f"| {marked['decoder']} ({mark}) | {marked['spec']} |" in text
    assert text.count(f"- {why}") == 1 and text.count(f"({mark})") == 1
    table = results_table(group)
    (line,) = (line for line in table.lines if line.marks)
    assert line.code == marked["decoder"] and not any(cell and cell.best for cell in line.cells)
    plain, file = group_of(tmp_path / "plain", *others)
    assert mark not in markdown([plain], file)


def test_the_fastest_cell_stands_first_and_a_long_table_says_what_it_leaves_out(tmp_path):
    slower = [row("sd", str(k), speedup=around(3.0 - k / 50, 0.01)) for k in range(50)]
    group, _ = group_of(tmp_path, *reversed(slower), LATER[0])
    table = results_table(group, 20)
    assert [line.tree for line in table.lines[:3]] == ["-", "0", "1"]
    assert (len(table.lines), table.left_out) == (20, 31)
    assert [line.cells[0].best for line in table.lines[:4]] == [False, True, False, False]


COLUMNS = {
    "exact match | f1 | execution accuracy": (
        {"exact_match": (0.5, 0.4, 0.6), "f1": 0.75, "execution_accuracy": (0.9, 0.8, 1.0)},
        "0.500 [0.400, 0.600] | 0.750 | 0.900 [0.800, 1.000]",
    ),
    "execution accuracy | execution errors": (
        {"execution_accuracy": 0.5, "execution_errors": 3, "execution_timeouts": 0},
        "0.500 | 3",
    ),
    "beam width | perplexity": (
        {"beam_width": (3.5, 3.0, 4.0), "perplexity": (1.4, 1.25, 1.5), "peak_memory_bytes": 4096},
        "3.50 [3.00, 4.00] | 1.40 [1.25, 1.50]",
    ),
    "sacrebleu score | mine ratio": (
        {"sacrebleu_score": (31.5, 30.0, 33.0), "mine_ratio": (1.5, None, None)},
        "31.500 [30.000, 33.000] | 1.500",
    ),
}


@pytest.mark.parametrize("titles", COLUMNS)
def test_what_was_measured_is_a_column_a_modules_score_too(titles, tmp_path):
    values, texts = COLUMNS[titles]
    group, file = group_of(tmp_path, row("dsbd", "4x2", **values))
    head, _, line = re.findall(r"^\| .*", markdown([group], file), re.MULTILINE)
    assert (head, line) == (
        f"| decoder | spec | {titles} |",
        f"| dsbd (beam law) | 4x2 | {texts} |",
    )


@pytest.mark.parametrize(("other", "there"), [(None, True), (2.0, False)])
def test_tokens_delivered_per_call_are_shown_where_a_row_has_no_block_efficiency(
    other, there, tmp_path
):
    known = {"speedup": 1.5, "block_efficiency_stream": 1.5}
    taus = {"sd": 2.0, "hf_assisted": other}
    rows = (row(name, "3", **known, block_efficiency=tau) for name, tau in taus.items())
    group, _ = group_of(tmp_path, *rows)
    assert ("tokens delivered per call" in dict(results_table(group).heads)) == there
