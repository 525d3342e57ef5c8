"""What is committed keeps its word: intervals, commands, and the figures of DSBD and ReDrafter."""

import re
from itertools import product
from math import sqrt

import pandas as pd
import pytest

from spec_bench.metrics.interval import FEWEST, WIDEST
from spec_bench.records import parquet
from spec_bench.report.claims import drop_failed_simulated_screened
from spec_bench.report.claims.ask import ClaimQuery
from spec_bench.report.claims.contrast import compute_correlation
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import (
    compute_max_tokens_per_call,
    read_rows,
    select_or_read_figure_rows,
    to_rows,
)
from spec_bench.report.figures import draw_figure_files
from spec_bench.report.figures.cells import add_figure_columns, select_valid_experiment_rows
from spec_bench.report.page.build import (
    build_page_tables,
    list_page_figures_by_pair,
    make_table_file_stems,
)
from spec_bench.report.papers.paper import (
    find_recipes_by_folder,
    get_figure,
    import_paper_code,
    load_paper,
)
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS, get_columns, select_must_match_columns
from tests.commands import report as main
from tests.committed import committed_files
from tests.report.rows import dsbd_cells, frame, head, redrafter_batches, redrafter_grid, row, write
from tests.report.shown import (
    all_series,
    committed_figures,
    figure_of,
    panels,
    points,
    series_of,
)
from tests.said import naming

ROOT = files.get_data_folder("results")
TABLES = sorted([*ROOT.glob("embedded/*/results.csv"), *ROOT.glob("*/results.csv")])
SCREENED = sorted(ROOT.glob("embedded/*/screening.csv"))
ROUNDING = 1e-9


def read(path):
    return pd.read_csv(path, dtype={"spec": str, "run_id": str}, low_memory=False)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_every_interval_encloses_its_number_and_stays_within_its_columns_range(path):
    rows = read(path)
    deepest = pd.Series(
        [compute_max_tokens_per_call(row) for row in to_rows(rows)], rows.index, dtype=float
    )
    for each in get_columns(rows.columns):
        names = [each.name, *(f"{each.name}{end}" for end in ENDS)]
        if not each.interval or not set(names) <= set(rows.columns):
            continue
        value, low, high = (rows[name] for name in names)
        known = low.notna()
        assert (known == high.notna()).all(), each.name
        assert (rows.prompts[known] >= FEWEST).all(), each.name
        value, low, high = value[known], low[known], high[known]
        slack = ROUNDING * value.abs().clip(lower=1)
        assert ((low <= value + slack) & (value <= high + slack)).all(), each.name
        least, most = each.limits
        assert least is None or (low >= least - ROUNDING).all(), each.name
        assert most is None or (high <= most + ROUNDING).all(), each.name
        if most is None and least is not None:
            assert (high <= WIDEST * low + slack).all(), each.name
        if each.name == "block_efficiency":
            assert not (high > deepest[known] + ROUNDING).any()


@pytest.mark.parametrize("path", SCREENED, ids=lambda path: path.parent.name)
def test_what_a_search_screened_has_no_intervals_and_no_records(path):
    screened, table = read(path), path.with_name("results.csv")
    assert {*screened.stage} == {"screen"} and not [n for n in screened if n.endswith(ENDS)]
    kept, rest = {*parquet.read_records(files.get_records_file(table)).run_ids}, read(table)
    assert kept and not (rest.stage == "screen").any()
    assert not {*kept, *rest.run_id} & {*screened.run_id}


def test_no_claim_of_any_paper_looks_at_what_was_screened():
    rows = read_rows(path.with_name("results.csv") for path in SCREENED)
    assert (rows.stage == "screen").any()
    assert "stage" in [
        column.name for column in select_must_match_columns(rows)
    ]  # so that no seeds are pooled
    stages = {*ClaimQuery(drop_failed_simulated_screened(rows), RecordReader(ROOT)).of().rows.stage}
    assert stages and "screen" not in stages


COMMITTED = committed_files("results")
SCRIPTS = ROOT.parent.glob("scripts/**/*.*[yh]")  # Python and shell
COMMANDS = "".join(path.read_text("utf-8") for path in (ROOT.parent / "Makefile", *SCRIPTS))
EXPERIMENTS = sorted({path.split("/")[2] for path in COMMITTED if path.startswith("results/emb")})

NOT_IN_GIT = (".html", ".pdf", ".tex")  # make report makes them again
WITHOUT_ROWS = {  # made by experiments/rsd/bernoulli.py and by heads_grid.sh
    "rsd-fig1": ["acceptance.csv", "rsd-fig1.png"],
    "redrafter-heads": ["heads.csv"],
}


def test_tables_and_figures_made_no_more_are_removed_and_others_stay(tmp_path, capsys):
    write(tmp_path, "rsd-exp1", row("sd", "2", block_efficiency=(2.0, 1.9, 2.1)))
    folder = tmp_path / "rsd-exp1"
    old = [folder / "tables" / "rsd-7-llama2_7b.md", folder / "figures" / "rsd-fig9-mine.pdf"]
    own = [folder / "figures" / "notes.txt", folder / "tables" / "rsd-thoughts.docx"]
    for path in (*old, *own):
        files.write_text(path, "of a year ago")
    assert main(["all", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert [path.is_file() for path in (*old, *own)] == [False, False, True, True]
    assert all(f"{path}: removed" in said for path in old)
    assert all(f"{path}: not made" in said for path in own)
    assert "rsd-7-llama2_7b" not in (tmp_path / "index.html").read_text()
    assert (folder / "tables" / "rsd-1.md").is_file()


def made_of(experiment):
    """What ``report all`` writes of an experiment and git keeps, without writing it."""
    recipe = find_recipes_by_folder()[experiment]
    assert re.search(rf"^recipe {recipe}\b|{recipe} experiment=embedded", COMMANDS, re.MULTILINE)
    items = load_paper(recipe.partition("=")[0]).items
    own = [item for item in items if experiment in item.experiments]
    rows = read_rows([ROOT / "embedded" / experiment / "results.csv"])
    tables = make_table_file_stems(build_page_tables(own, MeasuredRows(rows)))
    screened = "stage" in rows and (rows.stage == "screen").any()
    return {
        *("results.csv", "records.parquet", *(["screening.csv"] if screened else [])),
        *(f"tables/{stem}.{suffix}" for stem in tables for suffix in ("md", "csv")),
        *(f"figures/{name}.png" for name in committed_figures(experiment)),
    }


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_committed_file_of_an_experiment_is_one_that_a_command_makes(experiment):
    start = f"results/embedded/{experiment}/"
    there = {path.removeprefix(start) for path in COMMITTED if path.startswith(start)}
    assert there == {*(WITHOUT_ROWS.get(experiment) or made_of(experiment))}


def test_no_page_is_committed():
    assert [path for path in COMMITTED if path.endswith(NOT_IN_GIT)] == []


def test_every_other_committed_result_is_one_that_a_command_makes():
    kinds = ("results.csv", "records.parquet", "table.md", "figure.png")
    today = "smollm2/today-smollm2", "smollm2/today-spec-bench"
    ours = "quickstart", "qwen_coder", "smollm2", "smollm2-h100", *today
    known = {f"results/{of}/{name}" for of in ours for name in kinds}
    assert {path for path in COMMITTED if path.startswith("results/smollm2/today")} <= known
    for path in {path for path in COMMITTED if path.count("/") < 3} - known - {"results/README.md"}:
        assert path.startswith(("results/benchmarks/", "results/smollm2/")), path
        # The Makefile or a script names the file, or it names the command that it is from.
        names = (path.split("/")[-1], path.split(".")[0])
        if not any(name in COMMANDS for name in names):
            text = (ROOT.parent / path).read_text("utf-8")
            (made, *_) = re.findall(
                r"`(spec-bench (?:train|run) |python (?:scripts/[\w/]+\.py))", text
            )
            assert not made.endswith(".py") or (ROOT.parent / made[7:]).is_file(), path


OWN = import_paper_code(load_paper("redrafter").folder, "heads")


def numbers_drawn(paper, experiment, rows):
    """The figures of a page on these rows."""
    paper = load_paper(paper)
    items = [item for item in paper.items if experiment in item.experiments]
    return [
        drawing.item.number
        for drawing in list_page_figures_by_pair(paper, items, MeasuredRows(rows))
    ]


def marks(series, mark):
    return [each for each in series if each.mark == mark]


def test_the_front_is_drawn_as_steps_that_promise_no_more_than_was_had():
    figure = figure_of("dsbd/4", dsbd_cells())
    (front,) = marks(panels(figure)[0].drawn, "front")
    assert list(front.rows.spec) == ["4x2@0.7", "4x2@0.9", "3x2@0.9"]
    plot = figure.axes[0]
    (line,) = (line for line in plot.lines if line.get_drawstyle() != "default")
    assert line.get_drawstyle() == "steps-pre"  # between two speeds the faster one's score
    assert list(line.get_xdata()) == [24.0, 30.0, 36.0]
    assert list(line.get_ydata()) == [0.72, 0.70, 0.64]
    assert "front: 4x2@0.7, 4x2@0.9, 3x2@0.9" in [text.get_text() for text in plot.texts]


def test_marks_bear_the_intervals_of_both_numbers_and_a_note_says_what_had_no_meter():
    figure = figure_of("dsbd/4", dsbd_cells())
    (panel,) = panels(figure)
    (series,) = series_of(panel, decoder="sd")
    assert series.points("token_rate") == [(50.0, 49.0, 51.0)]
    assert series.points("cell.score") == [pytest.approx((0.5, 0.47, 0.53))]
    why = "J/token not measured: no meter; add energy=nvml, nvidia_smi or rapl"
    assert figure.missing == (why,)
    assert figure.get_supxlabel().endswith(f"\n{why}.")
    metered = figure_of("dsbd/4", dsbd_cells(energy_j_per_token=(2.0, 1.5, 2.5)))
    assert all(panel.drawn for panel in panels(metered))


def test_a_pair_of_the_paper_has_the_figures_tasks_and_another_pair_all():
    spider = dsbd_cells(task="spider")
    spider.columns = spider.columns.str.replace("exact_match", "execution_accuracy")
    both = pd.concat([dsbd_cells(), spider], ignore_index=True)
    assert [line[0].title for line in figure_of("dsbd/4", both).grid] == ["SQuAD", "Spider"]
    own = both.assign(pair="llama2_13b_68m")
    assert [line[0].title for line in figure_of("dsbd/4", own).grid] == ["SQuAD"]
    ((panel,),) = figure_of("dsbd/5", own).grid
    assert panel.format_axis_label("cell.score") == "execution accuracy"


def test_a_page_has_every_figure_that_is_for_any_pair(tmp_path):
    rows = dsbd_cells().assign(experiment="dsbd-fronts", file="results.csv")
    assert numbers_drawn("dsbd", "dsbd-fronts", rows) == [4, 6, 7, 8, 9]
    assert numbers_drawn("dsbd", "dsbd-fronts", rows.assign(pair="opt_13b")) == [4, 6]
    assert numbers_drawn("redrafter", "redrafter-grid", redrafter_grid(tmp_path)) == [3, 4]


def test_heads_lie_beside_the_rows_or_a_group_of_experiments_or_are_the_rows(tmp_path):
    rows = redrafter_grid(tmp_path / "embedded")
    assert len(OWN.heads_of(rows)) == 9
    own = pd.DataFrame([head("medusa")])
    assert OWN.heads_of(own) is own
    assert OWN.heads_of(rows.assign(file="nowhere/results.csv")).empty
    assert (
        len(select_valid_experiment_rows(rows, get_figure("redrafter/4"))) == 8
    )  # of several heads each
    assert len(select_or_read_figure_rows(get_figure("redrafter/3"), pd.DataFrame(), tmp_path)) == 9


def test_the_head_best_in_validation_is_shown_of_each_kind_and_of_two_and_four_blocks():
    sizes = product((1, 2, 4), (0.3, 0.6))
    heads = [head("redrafter", f"{n}-{each}", each, blocks=n) for n, each in sizes]
    rows = pd.DataFrame([heads[0], head("medusa"), *heads[1:]])
    best = OWN.best_heads(rows)
    assert list(best) == ["medusa", "redrafter"] and best["redrafter"]["folder"] == "1-0.6"
    shown = {name: each["folder"] for name, each in OWN.shown_heads(rows).items()}
    assert shown == {"medusa": "", "redrafter_2": "2-0.6", "redrafter_4": "4-0.6"}
    training, _ = panels(figure_of("redrafter/3", rows))
    labels = [series.label.replace("\n", " ").partition(",")[0] for series in training.drawn]
    assert labels == ["Medusa 2 blocks", "ReDrafter 2 blocks", "ReDrafter 4 blocks"]
    looks = [(series.look.colour, series.look.marker) for series in training.drawn]
    assert len(set(looks)) == 3 and looks[1][0] == looks[2][0], "one colour for ReDrafter"


def test_heads_have_bars_in_validation_and_none_in_training():
    figure = figure_of("redrafter/3", pd.DataFrame([head("medusa")]))
    training, validation = all_series(*panels(figure))
    assert all(pd.isna(low) for _, low, _ in training.points("accuracy"))
    value, low, high = validation.points("accuracy")[0]
    assert high - value == value - low == pytest.approx(1.96 * sqrt(0.6 * 0.4 / 800))


def test_cells_and_heads_are_joined_by_the_heads_folder(tmp_path):
    rows = redrafter_grid(tmp_path)
    rows.loc[0, "draft"] = "heads/redrafter-0/"  # as a user may write it
    rows.loc[1, "draft"] = "heads/of-someone-else"
    joined = OWN.grid_of(OWN.heads_of(rows), rows)
    assert len(joined) == 7
    assert joined.iloc[0]["validation t+5"] == pytest.approx(0.45)


def test_correlation_is_pearsons_and_needs_three_heads_that_differ():
    x, y = pd.Series([0.1, 0.2, 0.3]), pd.Series([10.0, 30.0, 20.0])
    assert compute_correlation(x, y) == pytest.approx(0.5)
    assert compute_correlation(x[:2], y[:2]) is None
    assert compute_correlation(x, pd.Series([10.0, 10.0, 10.0])) is None


def test_curves_with_tree_attention_are_apart_from_those_without(tmp_path):
    rows = redrafter_batches()
    (_, both) = figure_of("redrafter/6", rows).grid[1]
    assert {series.label: points(series) for series in all_series(both)} == {
        "ReDrafter, exact match 8x5, tree attention": [(1, 50), (4, 100)],
        "ReDrafter, exact match 8x5, beams as rows": [(1, 30), (4, 60)],
    }
    with pytest.raises(ValueError, match=naming("redrafter/6")):
        draw_figure_files(
            get_figure("redrafter/6"), rows[rows.batch_size == 1], tmp_path
        )  # one size is no curve


def told(figure):
    """Name and number of marks of each series."""
    return [
        [(each.mark, each.label, each.shape, len(each.rows)) for each in panel.drawn]
        for panel in panels(figure)
    ]


@pytest.mark.parametrize(
    "experiment", ["redrafter-batches", "redrafter-beams", "mcsd-acceptance", "dsbd-fronts"]
)
def test_no_column_of_the_rows_can_stand_for_one_that_figures_derive(experiment):
    names = ("attention", "ways", "group", "score", "score_name", "merged")
    parts = ("form", "width", "depth", "nodes", "threshold", "paths", "order", "draft_length")
    more = dict.fromkeys((*names, *parts), "of another")
    found, plain = committed_figures(experiment, **more), committed_figures(experiment)
    assert [*map(told, found.values())] == [*map(told, plain.values())] and [*found] == [*plain]


def test_a_column_that_rows_and_figures_both_have_stops_the_drawing(tmp_path, capsys):
    rows = frame(row("sd", "3", block_efficiency=2.0))
    with pytest.raises(ValueError, match=naming("'tree.depth'")):
        add_figure_columns(rows.assign(**{"tree.depth": 7}))
    heads = frame(head("redrafter", "mine", status="trained"))
    with pytest.raises(ValueError, match=naming("heads.csv", "'status'")):
        OWN.grid_of(heads, frame(row("redrafter", "4x3", draft="mine")))
    cells = [row("mcsd_wor", k, acceptance_rate=0.7, **{"tree.width": 1}) for k in "14"]
    write(tmp_path, "mcsd-acceptance", *cells)
    assert main(["all", "--results", str(tmp_path)]) == 2
    assert "'tree.width'" in capsys.readouterr().err
