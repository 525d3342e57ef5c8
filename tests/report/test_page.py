"""The page of an experiment, the index, and the card that says which decoder to use."""

import re
import shutil
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spec_bench.records.sessions import (
    ALL_OTHER_SESSIONS_NOTE,
    OTHER_SESSION_NOTE,
    make_session_note_per_row,
)
from spec_bench.report.data.rows import group_rows, read_results_file
from spec_bench.report.page.build import build_index_page, find_results_file
from spec_bench.report.page.headline import format_answer, make_headline, make_headlines
from spec_bench.report.page.results_table import build_results_table
from spec_bench.report.summary import format_groups_markdown, write_report_and_print_answers
from spec_bench.vocabulary import names
from tests.commands import report as main
from tests.report.rows import EMBEDDED, around, frame, row, write

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "embedded"
FAILURE = "RuntimeError: went wrong"
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
    return (folder / name / "page.html").read_text("utf-8")


def group_of(folder, *rows):
    file = write(folder, "mine", *rows) / "mine" / "results.csv"
    (group,) = group_rows(read_results_file(file))
    return group, file


def test_an_experiment_is_named_by_its_name_its_folder_or_its_file(everything):
    folder = everything / "rsd-exp1"
    for name in (folder.name, str(folder), str(folder / "results.csv")):
        assert find_results_file(name, everything) == folder / "results.csv"


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


def test_every_cell_stands_on_the_page_with_its_interval_or_its_failure(page):
    table = page.split('<table class="sortable">')[1].split("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", table.split("<tbody>")[1])
    assert len(rows) == 5
    assert '<span class="mark">simulated</span>' in rows[1]
    assert 'data-value="2.5"' in rows[2] and "<small>2.40–2.60</small>" in rows[2]
    assert f"failed: {FAILURE}" in rows[4] and "data-value" not in rows[4]


def test_an_experiment_of_no_paper_has_a_page_too_where_it_is_asked_for(everything, tmp_path):
    file, path = everything / "mine" / "results.csv", tmp_path / "out" / "mine.html"
    assert main(["page", str(file), "--out", str(path), "--results", str(tmp_path)]) == 0
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
    assert "spec-bench run -m dsbd=fronts pair=opt_13b engine=cuda task=squad,spider" in text


def test_a_page_of_small_models_says_so_and_has_the_looks_of_its_own_decoders(page, tmp_path):
    assert 'class="notice"' not in page
    rows = [row(name, "2", **EMBEDDED, speedup=1.2) for name in ("sd", "theirs")]
    text = page_of(tmp_path, *rows)
    notice, rest = text.split('<p class="notice">')[1].split("</p>", 1)
    assert notice.startswith("Measured on small models") and "not the paper" in notice
    assert 'class="tiles"' in rest
    for name in ("sd", "theirs"):
        colour = names.get_decoder_style(name).colour
        assert f"--{name}: {colour.light};" in text and f"--{name}: {colour.dark};" in text
        assert f".dot.{name} {{ background: var(--{name}); clip-path: " in text
    assert "--rsd_s:" not in text


def test_decoders_of_no_yaml_are_told_apart_by_colour_or_marker():
    decoders = [f"plug_in_{number}" for number in range(30)]
    shown = names.make_distinct_styles([*decoders, "sd", "eagle3_sd", "rsd_s"])
    assert len({(each.colour, each.marker, each.hollow) for each in shown.values()}) == 33
    assert len({each.colour for each in shown.values()}) > 3
    assert shown["sd"] == names.get_decoder_style("sd") and shown["eagle3_sd"].hollow
    assert names.make_distinct_styles(decoders[:1])[decoders[0]] == names.get_decoder_style(
        decoders[0]
    )


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
    own = ("page.html", "figures/rsd-fig6-llama2_7b.png", "tables/rsd-1.md")
    assert {"mine/page.html", *(f"rsd-exp1/{name}" for name in own)} <= {*links}
    assert "llama2_7b · XSum · 4 cells" in index.split("rsd-exp1/page.html")[1]


def test_the_index_links_no_page_that_is_not_there_and_tells_an_answer_where_there_is_one(tmp_path):
    write(tmp_path, "own", *LATER)
    write(tmp_path, "counted", row("ar"))
    text = build_index_page(tmp_path)
    assert "<h3>own</h3>" in text
    (said,) = re.findall(r'<p class="said">(.*?)</p>', text)
    assert said.startswith("XSum: use SD 2, 1.50×")


def test_table_and_console_begin_with_the_same_sentence_once(tmp_path, capsys):
    folder = write(tmp_path, "own", *LATER) / "own"
    write_report_and_print_answers(folder / "results.csv", folder)
    table, said = (folder / "table.md").read_text("utf-8"), capsys.readouterr().out
    first = said.splitlines()[0]
    assert first.startswith("XSum: use SD 2, 1.50×")
    assert table.startswith(f"### Answer\n\n- {first}\n")
    assert table.count(first) == said.count(first) == 1


def test_a_session_is_told_by_a_speedup_that_is_no_quotient_of_the_rates(tmp_path):
    assert make_session_note_per_row(LATER) == ["", "", OTHER_SESSION_NOTE]
    (line,) = make_headlines(
        group_rows(read_results_file(write(tmp_path, "own", *LATER) / "own/results.csv"))
    )
    assert "cells of different times" in line.sentence
    assert make_session_note_per_row([LATER[0], LATER[2]]) == [
        "",
        ALL_OTHER_SESSIONS_NOTE,
    ]  # said once, no row is marked
    assert make_session_note_per_row([row("sd", "2", speedup=2.0, token_rate=4.0)]) == [""]
    assert make_session_note_per_row([*LATER[:1], row("sd", "4", status="failed")]) == ["", ""]


STALLED = "stalled: 2 of 90 windows, median says 1.04"
BEAMS = row("dsbd", "4x2@0.9", lossless="exact_beam", speedup=(1.9, 1.8, 2.0))
SLOW = row("sd", "3", speedup=0.7, reason=f"speedup: {STALLED}; later_turns: 1")
FEW = (row("sd", "2", speedup=(1.4, 1.3, 1.5)), row("rsd_c", "2-1", speedup=(1.2, 1.1, 1.25)))
MARKED = [  # a mark, the row that has it, what the table says of it, and other rows
    ("another session", LATER[2], "another session: ", LATER[:2]),
    ("beam distribution", BEAMS, "beam distribution: exact for the distribution of beam", FEW),
    ("stalled", SLOW, f"xsum: speedup of sd 3: {STALLED}", [row("ar", "-", speedup=1.0)]),
]


@pytest.mark.parametrize(("mark", "marked", "why", "others"), MARKED)
def test_a_row_apart_is_marked_explained_and_not_the_best(mark, marked, why, others, tmp_path):
    group, file = group_of(tmp_path, *others, marked)
    text = format_groups_markdown([group], file)
    assert f"| {marked['decoder']} ({mark}) | {marked['spec']} |" in text
    assert text.count(f"- {why}") == 1 and text.count(f"({mark})") == 1
    table = build_results_table(group)
    (line,) = (line for line in table.lines if line.marks)
    assert line.decoder_name == marked["decoder"] and not any(
        cell and cell.is_best for cell in line.cells
    )
    plain, file = group_of(tmp_path / "plain", *others)
    assert mark not in format_groups_markdown([plain], file)


@pytest.mark.parametrize(
    ("sizes", "speedup"), [((1, 1), (1.4, 1.3, 1.5)), ((1, 4), (1.4, 1.3, 1.5)), ((1, 1), 1.4)]
)
def test_the_notes_name_all_batch_sizes_and_what_intervals_are_over(sizes, speedup, tmp_path):
    parts = [
        group_of(tmp_path / str(place), row("sd", "3", speedup=speedup, batch_size=size))
        for place, size in enumerate(sizes)
    ]
    text = format_groups_markdown([group for group, _ in parts], parts[0][1])
    assert f"- batch size {', '.join(map(str, dict.fromkeys(sizes)))}\n" in text
    assert ("its times are over clocks" in text) == (4 in sizes)
    assert ("No number here has an interval." in text) == (speedup == 1.4)


def test_the_fastest_cell_stands_first_and_a_long_table_says_what_it_leaves_out(tmp_path):
    slower = [row("sd", str(k), speedup=around(3.0 - k / 50, 0.01)) for k in range(50)]
    group, _ = group_of(tmp_path, *reversed(slower), LATER[0])
    table = build_results_table(group, 20)
    assert [line.tree for line in table.lines[:3]] == ["-", "0", "1"]
    assert (len(table.lines), table.left_out) == (20, 31)
    assert [line.cells[0].is_best for line in table.lines[:4]] == [False, True, False, False]


COLUMNS = {
    "exact match | f1 | execution accuracy | execution errors": (
        {"exact_match": (0.5, 0.4, 0.6), "f1": 0.75, "execution_accuracy": (0.9, 0.8, 1.0),
         "execution_errors": 3, "execution_timeouts": 0},
        "0.500 [0.400, 0.600] | 0.750 | 0.900 [0.800, 1.000] | 3",
    ),
    "beam width | perplexity": (
        {"beam_width": (3.5, 3.0, 4.0), "perplexity": (1.4, 1.25, 1.5), "peak_memory_bytes": 4096},
        "3.50 [3.00, 4.00] | 1.40 [1.25, 1.50]",
    ),
    "sacrebleu score | mine ratio": (
        {"sacrebleu_score": (31.5, 30.0, 33.0), "mine_ratio": (1.5, None, None)},
        "31.500 [30.000, 33.000] | 1.500",
    ),
}  # fmt: skip


@pytest.mark.parametrize("titles", COLUMNS)
def test_what_was_measured_is_a_column_a_modules_score_too(titles, tmp_path):
    values, texts = COLUMNS[titles]
    group, file = group_of(tmp_path, row("dsbd", "4x2", **values))
    head, _, line = re.findall(r"^\| .*", format_groups_markdown([group], file), re.MULTILINE)
    assert head == f"| decoder | spec | {titles} |"
    assert line == f"| dsbd (beam distribution) | 4x2 | {texts} |"


@pytest.mark.parametrize(("other", "there"), [(None, True), (2.0, False)])
def test_tokens_per_call_are_shown_where_a_row_has_no_block_efficiency(other, there, tmp_path):
    known = {"speedup": 1.5, "block_efficiency_stream": 1.5}
    taus = {"sd": 2.0, "hf_assisted": other}
    rows = (row(name, "3", **known, block_efficiency=tau) for name, tau in taus.items())
    group, _ = group_of(tmp_path, *rows)
    assert ("tokens delivered per call" in dict(build_results_table(group).heads)) == there


cell = partial(row, **EMBEDDED)


def card(*rows, **same):
    (group,) = group_rows(frame(*({**each, **same} for each in rows)))
    return make_headline(group)


def sd(spec, *speedup, **values):
    """Of so many times AR's speed: a value, or it with its interval."""
    return cell("sd", spec, speedup=speedup if speedup[1:] else speedup[0], **values)


AR = cell("ar", speedup=(1.0, 1.0, 1.0), token_rate=around(50.0, 1.0))
FAST = sd("3", 1.5, 1.4, 1.6)
RSD_S = cell("rsd_s", "4x3", speedup=(1.61, 1.49, 1.82))
TABLES = {
    "the best estimate is uncertain, the second sure": (
        (sd("3", 1.67, 0.53, 2.11), RSD_S),
        "use RSD-S 4x3, 1.61× [1.47 to 1.87]: surely faster than AR, tied with 1 other "
        "by overlapping intervals; SD 3 "
        "looks faster (1.67), not surely (8 prompts, intervals corrected for 2 cells)",
    ),
    "a sure one below any number of larger guesses": (
        (*(sd(str(k), 3.0 + k, 0.5, 9.0) for k in range(2, 6)), RSD_S),
        "use RSD-S 4x3, 1.61× [1.44 to 1.93]: surely faster than AR, tied with 4 others "
        "by overlapping intervals; SD 5 "
        "looks faster (8.00), not surely (8 prompts, intervals corrected for 5 cells)",
    ),
    "all are uncertain": (
        (sd("3", 1.67, 0.53, 2.11), cell("rsd_s", "4x3", speedup=(1.21, 0.95, 1.42))),
        "cannot decide yet: between SD 3, 1 other and AR; SD 3 looks faster, 1.67× [0.42 to 2.21]; "
        "about 120 prompts may decide (8 prompts, intervals corrected for 2 cells)",
    ),
    "three prompts": (
        (sd("3", 1.79, prompts=3),),
        "cannot decide yet: between SD 3 and AR; SD 3 looks faster, 1.79×; more prompts may "
        "decide (3 prompts)",
    ),
    "one cell that is faster": (
        (FAST,),
        "use SD 3, 1.50× [1.40 to 1.60]: surely faster than AR, the only one measured here (8 "
        "prompts)",
    ),
    "AR is surely the fastest": (
        (sd("3", 0.9, 0.84, 0.96), sd("2", 0.7, 0.66, 0.75)),
        "use AR: the fastest other one, SD 3, reaches 0.90× [0.84 to 0.96] of its speed (8 "
        "prompts, 2 cells)",
    ),
    "AR where no cell's own interval reaches above it": (
        (cell("rsd_c", "2-2-1", speedup=around(0.95, 0.05)), sd("3", 0.6, 0.5, 1)),
        "use AR: the fastest other one, RSD-C 2-2-1, reaches 0.95× [0.90 to 1.00] of its speed (8 "
        "prompts, 2 cells)",
    ),
    "a cell that no interval excludes keeps AR from being the answer": (
        (cell("rsd_c", "2-2-1", speedup=around(0.7, 0.03)), sd("3", 0.6)),
        "cannot decide yet: between SD 3 and AR; SD 3 looks slower, 0.60×; more prompts may "
        "decide (8 prompts, intervals corrected for 2 cells)",
    ),
    "a tie with AR": (
        (sd("3", 1.0, 0.98, 1.02, prompts=50), sd("2", 0.7, 0.66, 0.75, prompts=50)),
        "a tie: SD 3 is as fast as AR within 5%, 1.00× [0.98 to 1.02] (50 prompts, intervals "
        "corrected for 2 cells)",
    ),
    "a tie of two that are faster": (
        (sd("3", 1.6, 1.5, 1.7, prompts=50), sd("2", 1.58, 1.48, 1.69, prompts=50)),
        "use SD 3, 1.60× [1.49 to 1.72]: surely faster than AR, tied with 1 other "
        "by overlapping intervals (50 prompts, "
        "intervals corrected for 2 cells)",
    ),
    "another engine's row is no answer": (
        (cell("hf_assisted", "3", speedup=around(3.0, 0.1), lossless="unaudited"), FAST),
        "use SD 3, 1.50× [1.40 to 1.60]: surely faster than AR, the only exact one (8 prompts)",
    ),
    "a stalled one is no answer, however fast it looks": (
        (sd("3", 6.5, 6.0, 7.0, reason=f"speedup: {STALLED}"), FAST | {"spec": "2"}),
        "use SD 2, 1.50× [1.38 to 1.62]: surely faster than AR, the only one that is judged, those "
        "that stalled or were disturbed left out (8 prompts, intervals corrected for 2 cells)",
    ),
    "two that are judged are all that others are": (
        (
            *(sd("3", 6.5, 6.0, 7.0, reason=f"speedup: {STALLED}"), FAST | {"spec": "2"}),
            *(sd("5", 1.1, 1.0, 1.2), sd("6", 6.0, 5.0, 7.0, reason="speedup: disturbed: a core")),
        ),
        "use SD 2, 1.50× [1.36 to 1.64]: surely faster than AR, ahead of all others, those that "
        "stalled or were disturbed left out (8 prompts, intervals corrected for 4 cells)",
    ),
    "a stalled one keeps AR from being the answer": (
        (sd("3", 1.35, 1.2, 1.5, reason=f"speedup: {STALLED}"), sd("2", 0.7, 0.66, 0.75)),
        "cannot decide yet: between SD 3 and AR: stalled: 2 of 90 windows, median says 1.04; run "
        "it again with another --out (8 prompts, intervals corrected for 2 cells)",
    ),
    "a stalled one of too few prompts needs more of them, too": (
        (sd("3", 1.35, prompts=3, reason=f"speedup: {STALLED}"),),
        "cannot decide yet: between SD 3 and AR: stalled: 2 of 90 windows, median says 1.04; run "
        "it again with another --out; more prompts may decide (3 prompts)",
    ),
    "one name in table and answer, with and without tree attention": (
        (
            cell("mcsd_wor", "4-2-1", speedup=around(2.0, 0.1), tree_attention=False),
            cell("mcsd_wor", "4-2-1", speedup=around(1.5, 0.1)),
        ),
        "use MCSD (mcsd_wor) 4-2-1, paths as rows, 2.00× [1.88 to 2.12]: surely faster than AR, "
        "ahead of all others (8 prompts, intervals corrected for 2 cells)",
    ),
    "ahead by less than two names of one configuration differ": (
        (
            cell("rsd_c", "2-1-1", speedup=around(1.5, 0.01)),
            cell("mcsd_wor", "2-1-1", speedup=around(1.4, 0.01)),
            sd("3", 1.55, 1.54, 1.56),
        ),
        "use SD 3, 1.55× [1.54 to 1.56]: surely faster than AR, tied with 1 other "
        "by overlapping intervals (8 prompts, "
        "intervals corrected for 3 cells)",
    ),
    "faster than AR by less than two names of one configuration differ": (
        (
            cell("rsd_c", "2-1-1", speedup=around(1.05, 0.01)),
            cell("mcsd_wor", "2-1-1", speedup=around(0.97, 0.01)),
        ),
        "cannot decide yet: between RSD-C 2-1-1 and AR: within chance: two names of one "
        "configuration differ by 8.2%; run it again with another --out (8 prompts, intervals "
        "corrected for 2 cells)",
    ),
    "transformers' own generate is surely faster than our plain decoding": (
        (
            sd("3", *around(1.5, 0.1)),
            cell("hf_generate", "-", speedup=around(1.25, 0.05), lossless="unaudited"),
        ),
        "use SD 3, 1.50× [1.40 to 1.60]: surely faster than AR, the only exact one (8 prompts, "
        "transformers' generate is 1.25× as fast as AR)",
    ),
    "seeds are pooled": (
        (cell("sd", "3", speedup=around(1.5, 0.1), seeds="0,1,2"),),
        "use SD 3, 1.50× [1.40 to 1.60]: surely faster than AR, the only one measured here (8 "
        "prompts and 3 seeds)",
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_answer_looks_at_every_cell_and_says_what_they_can_decide(table):
    cells, told = TABLES[table]
    found = card(AR, *cells)
    assert found.sentence == f"XSum: {told}."
    assert (found.decoder_name == "ar") == told.startswith("use AR") == (found.speed == "1.00×")


def test_the_best_of_many_must_be_surer_to_be_faster_than_one_alone():
    lucky = sd("3", *around(1.1, 0.09))
    assert card(AR, lucky).decoder == "SD 3"
    many = card(AR, lucky, *(sd(str(k), *around(1.0, 0.09)) for k in range(4, 24)))
    assert (many.decoder, many.decoder_name) == ("cannot decide yet", "")
    assert "SD 3 looks faster, 1.10× [0.9" in many.certainty


def test_a_search_is_headlined_by_what_was_confirmed():
    screened = (sd("3", *around(2.9, 0.1)), sd("2", *around(2.0, 0.1)))
    assert card(AR, *screened, stage="screen") is None
    found = card(AR, *screened, stage="confirm")
    assert (found.decoder, found.interval) == ("SD 3", "2.78 to 3.02")
    assert found.basis == "8 prompts, intervals corrected for 2 confirmed cells"
    few = card(AR, sd("3", 1.4), stage="confirm", prompts=3)
    assert "more prompts (confirm.prompts) may decide" in few.sentence


@pytest.mark.parametrize(("rate", "decoder"), [(40.0, "AR"), (60.0, "SD 3")])
def test_without_a_speedup_the_token_rates_are_compared_with_ars_too(rate, decoder):
    bare = {**AR, "speedup": None, "speedup_low": None, "speedup_high": None}
    found = card(bare, cell("sd", "3", token_rate=around(rate, 1.0)))
    assert found.decoder == decoder
    assert ("reaches 0.80× [0.76 to 0.84] of its speed" in found.certainty) == (decoder == "AR")
    assert found.certainty.endswith(", not measured side by side")
    near = card(bare, cell("sd", "3", token_rate=around(50.0, 1.0)))
    assert near.certainty.startswith("SD 3 is as fast as AR within 5%, 1.00× [0.96 to 1.04]")


def test_without_any_time_a_card_counts_tokens_and_failed_cells_have_no_card():
    found = card(cell("ar", block_efficiency=1.0), cell("sd", "3", block_efficiency=2.5))
    assert (found.decoder, found.certainty) == ("SD 3", "no speed was measured")
    assert card(AR, cell("sd", "3", status="failed", reason="X")) is None


def test_another_engines_row_is_marked_where_there_is_no_other():
    theirs = cell("hf_assisted", "3", speedup=around(3.0, 0.1), lossless="unaudited")
    served = card(cell("served", "-", token_rate=80.0, lossless="unaudited"))
    assert served.value == "80.0 tokens/s" and not served.decoder.endswith("-")
    alone = card(AR, theirs)
    assert alone.decoder == "transformers assisted (hf_assisted) 3"
    assert alone.certainty.endswith(", another engine")


def test_heads_that_share_decoder_and_tree_are_told_apart_by_their_names():
    heads = (
        cell("redrafter", "15x5", draft=f"runs/grid/{name}/heads", speedup=around(speed, 0.1))
        for name, speed in (("two", 1.5), ("one", 1.4))
    )
    found = card(AR, *heads)
    assert found.decoder == "ReDrafter, exact match (redrafter) 15x5 two"
    assert found.certainty == "surely faster than AR, tied with 1 other by overlapping intervals"


TIED = (
    cell("rsd_s", "4x3", speedup=around(2.0, 0.2), nodes_per_call=12.0, draft_calls=3),
    sd("3", *around(1.95, 0.2), nodes_per_call=3.0, draft_calls=3),
    sd("1", *around(1.85, 0.2), nodes_per_call=1.0, draft_calls=1),
    sd("2", *around(1.5, 0.1), nodes_per_call=2.0, draft_calls=2),
)


def test_of_decoders_that_are_not_told_apart_the_simplest_that_is_close_is_the_answer():
    found = card(AR, *TIED)
    assert (found.decoder, found.value, found.tied_and_all_counts) == ("SD 3", "1.95×", (3, 4))
    tied = "tied with 2 others by overlapping intervals, the simplest within 5% of RSD-S 4x3"
    assert found.certainty == f"surely faster than AR, {tied}"


def test_an_experiment_comes_to_one_sentence_with_its_ties():
    alone = card(AR, FAST)
    few = card(AR, sd("3", 1.79), prompts=3, task="dolly")
    slow = card(AR, sd("3", *around(0.5, 0.1)), task="dolly")
    tied = [card(AR, *TIED), card(AR, *TIED, task="dolly")]
    for cards, said in (
        ([], ""),
        ([alone], alone.sentence),
        (tied, "Use SD 3 on XSum, Dolly: 1.95× (tied with others on 2 of 2)."),
        ([alone, slow], "Use SD 3 on XSum: 1.50×; AR on Dolly."),
        ([few, alone], "Use SD 3 on XSum: 1.50×; cannot decide yet on Dolly."),
        ([few, few], "Cannot decide yet on Dolly (2 settings)."),
    ):
        assert format_answer(cards) == said


def test_one_decoder_under_two_meters_is_no_search():
    meters = [{**FAST, "energy_method": name} for name in ("nvml", "rapl")]
    assert "cells" not in card(AR, *meters).basis
    again = {**FAST, "spec": "2", "energy_method": "rapl"}
    assert "2 cells" in card(AR, *meters, again).basis
    lookup = {**FAST, "draft": None, "energy_method": None}
    assert "cells" not in card(AR, lookup).basis
