"""An experiment's page: one file, nothing fetched, every cell on it."""

import re
from html.parser import HTMLParser

import pytest

from spec_bench.report.cli.command_line import main
from spec_bench.report.page.gather import results_file
from spec_bench.vocabulary import names
from tests.report.rows import EMBEDDED, row, write

FAILURE = "RuntimeError: went wrong"


def measured(folder):
    return write(
        folder,
        "rsd-exp1",
        row("ar", "-", block_efficiency=1.0, token_rate=40.0, speedup=1.0),
        row("sd", "2", block_efficiency=(2.0, 1.9, 2.1), speedup=(1.4, 1.3, 1.5)),
        row("rsd_s", "3x2", block_efficiency=(2.5, 2.4, 2.6), speedup=(1.8, 1.7, 1.9)),
        row("rsd_c", "2-2", lossless="simulated", block_efficiency=2.4, speedup=9.0),
        row("spectr", "3x2", status="failed", reason=f"{FAILURE} (trace: runs/1)", lossless=""),
    )


@pytest.fixture
def results(tmp_path):
    return measured(tmp_path)


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


@pytest.fixture
def index(everything):
    return (everything / "index.html").read_text()


def page_of(results, *arguments):
    assert main(["page", "rsd-exp1", "--results", str(results), *arguments]) == 0
    return (results / "rsd-exp1" / "page.html").read_text()


def table_rows(text):
    table = text.split('<table class="sortable">')[1].split("</table>")[0]
    return re.findall(r"<tr.*?</tr>", table.split("<tbody>")[1])


def answer_of(text):
    return text.split('<p class="answer">')[1].split("</p>")[0]


def test_an_experiment_is_named_by_its_name_its_folder_or_its_file(results):
    folder = results / "rsd-exp1"
    for name in (folder.name, str(folder), str(folder / "results.csv")):
        assert results_file(name, results) == folder / "results.csv"


def test_the_page_asks_for_nothing_over_the_network(page):
    assert "http:" not in page and "https:" not in page and "//cdn" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "@import" not in page and "url(" not in page


def test_every_cell_stands_on_the_page_with_its_interval(page):
    rows = table_rows(page)
    assert len(rows) == 5
    assert 'data-value="2.5"' in rows[2]
    assert "<small>2.40–2.60</small>" in rows[2]


def test_failed_and_simulated_cells_are_marked_on_the_page(page):
    rows = table_rows(page)
    assert '<span class="mark">simulated</span>' in rows[1]
    assert f"failed: {FAILURE}" in rows[4]
    assert "data-value" not in rows[4]


def test_the_headline_is_the_fastest_exact_decoder_and_how_sure(page):
    said = answer_of(page)
    assert said.startswith("XSum: use RSD-S 3x2, 1.80×")
    assert "surely faster than AR, ahead of all others" in said
    assert "(30 prompts, intervals corrected for 2 cells)" in said


def test_the_page_names_missing_cells_and_their_command(page):
    assert "29 of 33" in page
    assert "spec-bench rsd=exp1 pair=llama2_7b engine=cuda task=xsum" in page


def test_figures_lie_in_the_page_itself(page):
    assert 'src="data:image/png;base64,iVBOR' in page


def test_the_papers_table_stands_on_the_page_beside_ours(page):
    assert 'id="rsd-1"' in page
    assert '<td class="number paper">2.166</td><td class="number ours">2.000' in page


def test_the_page_is_well_formed(page):
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


def test_an_experiment_of_no_paper_has_a_page_too(everything, tmp_path):
    file, path = everything / "mine" / "results.csv", tmp_path / "out" / "mine.html"
    assert main(["page", str(file), "--output", str(path), "--results", str(tmp_path)]) == 0
    assert "an own experiment" in path.read_text()
    assert "an own experiment" in (everything / "mine" / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nothing"], "there: rsd-exp1"), (["rsd-exp1", "--pair", "nothing"], "llama2_7b")],
)
def test_a_page_that_cannot_be_made_is_one_line_with_choices(results, arguments, words, capsys):
    assert main(["page", *arguments, "--results", str(results)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert words in error


def test_names_from_results_are_escaped(tmp_path):
    write(tmp_path, "mine", row("sd", "2", pair="<script>x</script>", block_efficiency=1.0))
    file = tmp_path / "mine" / "results.csv"
    assert main(["page", str(file), "--results", str(tmp_path)]) == 0
    assert "<script>x" not in (tmp_path / "mine" / "page.html").read_text()


def files_below(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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


def test_all_without_results_is_one_line(tmp_path, capsys):
    assert main(["all", "--results", str(tmp_path)]) == 2
    assert "no experiment below" in capsys.readouterr().err


def test_rows_that_follow_the_law_of_beams_are_marked_explained_and_no_headline(tmp_path):
    write(
        tmp_path,
        "rsd-exp1",
        row("sd", "2", speedup=(1.4, 1.3, 1.5)),
        row("rsd_c", "2-1", speedup=(1.2, 1.1, 1.25)),
        row("dsbd", "4x2@0.9", lossless="exact_beam", speedup=(1.9, 1.8, 2.0)),
    )
    text = page_of(tmp_path)
    beams, first, _ = table_rows(text)
    assert '<span class="mark quiet">beam law</span>' in beams
    assert "beam law: exact for the law of beam decoding" in text
    assert answer_of(text).startswith("XSum: use SD 2, 1.40×")
    assert 'class="number best"' in first
    assert 'class="number best"' not in beams


def test_an_experiment_without_tables_counts_its_figures_cells(tmp_path):
    own = {"pair": "opt_13b", "task": "squad", "temperature": 1.0, "top_k": 10, "top_p": 0.8}
    write(tmp_path, "dsbd-fronts", row("sd", "3", token_rate=30.0, **own))
    assert main(["page", "dsbd-fronts", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "dsbd-fronts" / "page.html").read_text()
    assert "26 of 27" in text
    assert "spec-bench -m dsbd=fronts pair=opt_13b engine=cuda task=squad,spider" in text


def test_a_claim_stands_below_the_papers_sentence_and_its_section(tmp_path):
    rates = {"token_rate": (50.0, 49.0, 51.0), "block_efficiency": (2.0, 1.9, 2.1)}
    trees = (("sd", "2"), ("rsd_s", "3x2"), ("rsd_c", "2-2"))
    write(tmp_path, "rsd-exp1", *(row(decoder, spec, **rates) for decoder, spec in trees))
    checks = page_of(tmp_path).split('<section id="checks">')[1].split("</section>")[0]
    said = "RSD-S strictly outperforms both SD and SpecTr for all performance metrics"
    assert f"“{said}” <span>Section 5.1</span>" in checks
    counts, below = checks.split(said)[1:3]
    assert '<td class="number">2</td>' in counts.split("</tr>")[0]
    below = below.split("<tbody>")[0]
    assert "rsd_s &gt; sd in token rate" in below
    assert "best trees" not in below
    assert "Not said by the paper, checked beside it" in checks


def test_a_page_of_small_models_says_so_first(page, tmp_path):
    assert 'class="notice"' not in page
    write(tmp_path / "small", "rsd-exp1", row("sd", "2", **EMBEDDED, speedup=1.2))
    text = page_of(tmp_path / "small")
    notice, rest = text.split('<p class="notice">')[1].split("</p>", 1)
    assert notice.startswith("Measured on small models")
    assert "not the paper" in notice
    assert 'class="tiles"' in rest


def test_a_pages_colours_are_those_of_the_figures_and_of_its_own_decoders_only(tmp_path):
    write(tmp_path, "rsd-exp1", row("sd", "2", speedup=1.2), row("theirs", "2", speedup=1.1))
    page = page_of(tmp_path)
    for name in ("sd", "theirs"):
        assert f"--{name}: {names.decoder(name).colour.light};" in page
        assert f"--{name}: {names.decoder(name).colour.dark};" in page
        assert f".dot.{name} {{ background: var(--{name}); clip-path: " in page
    assert "--rsd_s:" not in page


def test_the_index_has_every_experiment_with_its_page_and_a_picture(index):
    assert '<a href="rsd-exp1/page.html">rsd-exp1</a>' in index
    assert '<a href="mine/page.html">mine</a>' in index
    own = index.split("rsd-exp1/page.html")[1]
    assert "llama2_7b · XSum · 4 cells" in own
    assert '<a href="rsd-exp1/figures/rsd-fig6-llama2_7b.png">Figure 6, llama2_7b</a>' in own
    assert '<a href="rsd-exp1/tables/rsd-1.md">Table 1</a>' in own
    assert "RSD: Recursive Speculative Decoding" in index
    assert "Other experiments" in index


def test_the_index_links_only_to_files_there(everything, index):
    assert "http:" not in index and "https:" not in index and "@import" not in index
    assert 'src="data:image/png;base64,' in index
    links = re.findall(r'href="([^"#]+)"', index)
    assert links and all((everything / link).is_file() for link in links)


def test_an_experiment_without_a_page_is_no_link(tmp_path):
    write(tmp_path, "mine", row("sd", "2", block_efficiency=1.0))
    write(tmp_path, "other", row("sd", "2", block_efficiency=1.0))
    assert main(["all", "other", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "index.html").read_text()
    assert "<h3>mine</h3>" in text
    assert '<a href="other/page.html">other</a>' in text
