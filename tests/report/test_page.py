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


def table_rows(text):
    table = text.split('<table class="sortable">')[1].split("</table>")[0]
    return re.findall(r"<tr.*?</tr>", table.split("<tbody>")[1])


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
    parts = ('class="answer"', 'id="figures"', 'id="checks"', 'id="results"', 'id="rsd-1"')
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    answer = page.split('<p class="answer">')[1].split("</p>")[0]
    assert answer.startswith("XSum: use RSD-S 3x2, 1.80×")
    assert '<td class="number paper">2.166</td><td class="number ours">2.000' in page
    assert "29 of 33" in page
    assert "spec-bench rsd=exp1 pair=llama2_7b engine=cuda task=xsum" in page


def test_every_cell_stands_on_the_page_with_its_interval_or_its_failure(page):
    rows = table_rows(page)
    assert len(rows) == 5
    assert '<span class="mark">simulated</span>' in rows[1]
    assert 'data-value="2.5"' in rows[2] and "<small>2.40–2.60</small>" in rows[2]
    assert f"failed: {FAILURE}" in rows[4] and "data-value" not in rows[4]
    heads = re.findall(r'<button type="button">([^<]*)</button>', page)
    assert heads[:2] == ["decoder", "speedup"]


def test_a_claim_stands_below_the_papers_sentence_and_its_section(page):
    checks = page.split('<section id="checks">')[1].split("</section>")[0]
    assert f"“{SAID}” <span>Section 5.1</span>" in checks
    counts, below = checks.split(SAID)[1:3]
    assert '<td class="number">2</td>' in counts.split("</tr>")[0]
    assert "rsd_s &gt; sd in token rate" in below.split("<tbody>")[0]
    assert "best trees" not in below.split("<tbody>")[0]
    assert "Not said by the paper, checked beside it" in checks


def test_an_experiment_of_no_paper_has_a_page_too_where_it_is_asked_for(everything, tmp_path):
    file, path = everything / "mine" / "results.csv", tmp_path / "out" / "mine.html"
    assert main(["page", str(file), "--output", str(path), "--results", str(tmp_path)]) == 0
    assert "an own experiment" in path.read_text()
    assert "an own experiment" in (everything / "mine" / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["page", "nothing"], "there: mine, rsd-exp1"),
        (["page", "rsd-exp1", "--pair", "nothing"], "llama2_7b"),
        (["all", "--results", "/nowhere"], "no experiment below"),
    ],
)
def test_a_page_that_cannot_be_made_is_one_line_with_choices(everything, arguments, words, capsys):
    assert main([arguments[0], "--results", str(everything), *arguments[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_names_from_results_are_escaped(tmp_path):
    bad = row("sd", "2", pair="<script>x</script>", block_efficiency=1.0)
    assert "<script>x" not in page_of(tmp_path, bad, name="mine")


def files_below(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_one_command_writes_page_tables_and_figures_and_again_gives_the_same(everything):
    first = files_below(everything / "rsd-exp1")
    assert set(first) == {
        *("page.html", "results.csv", "figures/rsd-fig6-llama2_7b.png"),
        *("figures/rsd-fig6-llama2_7b.pdf", "tables/rsd-1.md"),
        *("tables/rsd-1.csv", "tables/rsd-1.tex"),
    }
    assert main(["all", "rsd-exp1", "--results", str(everything)]) == 0
    assert files_below(everything / "rsd-exp1") == first


def test_another_pairs_tables_and_figures_bear_its_name(tmp_path):
    own = {"pair": "embedded", "target": "embedded:target", "task": "alpaca"}
    plain = {**own, "pair": "embedded_plain"}
    rates = {"temperature": 1.0, "acceptance_rate": (0.7, 0.6, 0.8)}
    rows = [row("mcsd_wor", k, **{**pair, **rates}) for pair in (own, plain) for k in "14"]
    write(tmp_path, "mcsd-acceptance", *rows)
    assert main(["all", "--results", str(tmp_path)]) == 0
    folder = tmp_path / "mcsd-acceptance"
    assert {path.name for path in (folder / "tables").glob("*.md")} == {
        *("mcsd-1-embedded.md", "mcsd-7-embedded.md"),
        *("mcsd-1-embedded_plain.md", "mcsd-7-embedded_plain.md"),
    }
    assert [path.name for path in (folder / "figures").glob("*.png")] == ["mcsd-fig3.png"]
    page = (folder / "page.html").read_text()
    assert "embedded, embedded_plain, drawn as Figure 3 of the paper" in page
    assert "· ours: embedded_plain</summary>" in page


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
        assert f"--{name}: {names.decoder(name).colour.light};" in text
        assert f"--{name}: {names.decoder(name).colour.dark};" in text
        assert f".dot.{name} {{ background: var(--{name}); clip-path: " in text
    assert "--rsd_s:" not in text


def test_decoders_of_no_yaml_are_told_apart_by_colour_or_marker():
    decoders = [f"plug_in_{number}" for number in range(30)]
    shown = names.apart([*decoders, "sd", "eagle3_sd", "rsd_s"])
    looks = {(each.colour, each.marker, each.hollow) for each in shown.values()}
    assert len(looks) == len(shown) == 33
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
    assert links and all((everything / link).is_file() for link in links)
    assert '<a href="mine/page.html">mine</a>' in index
    own = index.split('<a href="rsd-exp1/page.html">rsd-exp1</a>')[1]
    assert "llama2_7b · XSum · 4 cells" in own
    assert '<a href="rsd-exp1/figures/rsd-fig6-llama2_7b.png">Figure 6, llama2_7b</a>' in own
    assert '<a href="rsd-exp1/tables/rsd-1.md">Table 1</a>' in own
    assert "RSD: Recursive Speculative Decoding" in index and "Other experiments" in index


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
REASON = f"speedup: {STALLED}; later_turns: 1"
MARKED = {  # the marked row, of which the table says why, and another one
    "another sitting": (LATER[2], "another sitting: ", LATER[:2]),
    "beam law": (
        row("dsbd", "4x2@0.9", lossless="exact_beam", speedup=(1.9, 1.8, 2.0)),
        "beam law: exact for the law of beam decoding",
        [row("sd", "2", speedup=(1.4, 1.3, 1.5)), row("rsd_c", "2-1", speedup=(1.2, 1.1, 1.25))],
    ),
    "stalled": (
        row("sd", "3", speedup=0.7, reason=REASON),
        f"xsum: speedup of sd 3: {STALLED}",
        [row("ar", "-", speedup=1.0)],
    ),
}


@pytest.mark.parametrize("mark", MARKED)
def test_a_row_that_does_not_compare_is_marked_explained_and_not_the_best(mark, tmp_path):
    marked, why, others = MARKED[mark]
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


COLUMNS = [
    (
        {"exact_match": (0.5, 0.4, 0.6), "f1": 0.75, "execution_accuracy": (0.9, 0.8, 1.0)},
        ["exact match", "f1", "execution accuracy"],
        ["0.500 [0.400, 0.600]", "0.750", "0.900 [0.800, 1.000]"],
    ),
    (
        {"execution_accuracy": 0.5, "execution_errors": 3, "execution_timeouts": 0},
        ["execution accuracy", "execution errors"],
        ["0.500", "3"],
    ),
    (
        {"beam_width": (3.5, 3.0, 4.0), "perplexity": (1.4, 1.25, 1.5), "peak_memory_bytes": 4096},
        ["beam width", "perplexity"],
        ["3.50 [3.00, 4.00]", "1.40 [1.25, 1.50]"],
    ),
    (
        {"sacrebleu_score": (31.5, 30.0, 33.0), "mine_ratio": (1.5, None, None)},
        ["sacrebleu score", "mine ratio"],
        ["31.500 [30.000, 33.000]", "1.500"],
    ),
]


@pytest.mark.parametrize(("values", "titles", "texts"), COLUMNS)
def test_what_was_measured_is_a_column_a_modules_score_too(values, titles, texts, tmp_path):
    group, file = group_of(tmp_path, row("dsbd", "4x2", **values))
    lines = [line for line in markdown([group], file).splitlines() if line.startswith("| ")]
    header, _, line = ([cell.strip() for cell in each.strip("|").split("|")] for each in lines)
    assert header == ["decoder", "spec", *titles] and line[2:] == texts


@pytest.mark.parametrize(("other", "there"), [(None, True), (2.0, False)])
def test_tokens_delivered_per_call_are_shown_where_a_row_has_no_block_efficiency(
    other, there, tmp_path
):
    known = {"speedup": 1.5, "block_efficiency_stream": 1.5}
    rows = [
        row(name, "3", **known, block_efficiency=tau)
        for name, tau in (("sd", 2.0), ("hf_assisted", other))
    ]
    group, _ = group_of(tmp_path, *rows)
    assert ("tokens delivered per call" in dict(results_table(group).heads)) == there
