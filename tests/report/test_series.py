"""The series of the committed experiments' figures, drawn from rows with all their columns.

A figure whose curves fell into one, or whose line goes back and forth, is a figure all the same:
what it says has to be looked at.
"""

import itertools

import pytest

from spec_bench.report.cli.command_line import main
from spec_bench.report.figures.derived import derive
from spec_bench.report.papers.claim import code_of
from spec_bench.report.papers.paper import load_paper
from tests.report.drawn import committed_sheets
from tests.report.rows import frame, head, row, write
from tests.said import naming

OWN = code_of(load_paper("redrafter").folder, "heads")

RULES = (
    "SpecTr 3, optimal rule 3, SpecTr's paths, traversal 3, SpecInfer 3, "
    "SpecInfer's trees, traversal 3, RSD-C 3, traversal 3, top and sample 3, RSD-S 3, "
    "RSD-S's beams, traversal 3"
)
DRAFT_FREE = (
    "AR 1, SD 1, prompt lookup 1, lookup by votes 1, suffix lookup, own text 1, "
    "lookup or draft 1, transformers generate 1, transformers assisted 1, "
    "transformers prompt lookup 1"
)
BEAMS = "DSBD (beam law) 20, beam sampling (beam law) 4"
HEADS = "with recurrence (6 heads) 6, without (6 heads) 6"
KINDS = (
    "Medusa 1 block, 1.87M 5, ReDrafter 2 blocks, 1.04M 5, "
    "ReDrafter, no recurrence 2 blocks, 0.97M 5"
)
EAGLES = (  # with replacement; without
    "EAGLE-3, SD 2, EAGLE-3, block verification 2, EAGLE-3, SpecTr 2, EAGLE-3, optimal rule 2, "
    "EAGLE-3, SpecTr's paths, traversal 2, EAGLE-3, MCNS 2, EAGLE-3, SpecInfer 2, "
    "EAGLE-3, SpecInfer's trees, traversal 2",
    "EAGLE-3, RSD-C 2, EAGLE-3, traversal 2, EAGLE-3, top and sample 2, "
    "EAGLE-3, EAGLE's tree 1, "
    "EAGLE-3, EAGLE's tree, traversal 1, EAGLE-3, RSD-S 2, EAGLE-3, RSD-S's beams, traversal 2, "
    "EAGLE-3, DySpec 2, EAGLE-3, DySpec, traversal 2, EAGLE-3 2",
)
DRAFTERS = (  # of 5 nodes; of 25
    "SD 5 1, Medusa chain_5 1, ReDrafter, exact match 1x5 1, EAGLE, SD 5 1, "
    "EAGLE-3, SD 5 1, prompt lookup 1x5 1",
    "OPT-Tree 10x5@25 1, RSD-S 5x5 1, Medusa eagle_25 1, ReDrafter, exact match 5x5 1, "
    "EAGLE-2 10x5@25 1, EAGLE eagle_25 1, EAGLE-3 10x5@25 1, EAGLE-3, EAGLE's tree eagle_25 1, "
    "lookup by votes 5x5 1",
)
TRIED = "decreasing widths 9, equal widths 3"
SERIES = {
    "beyond-draft-free": {"beyond-fig4-embedded": [DRAFT_FREE]},
    "beyond-trees": {
        "beyond-fig3-embedded": ["SpecTr 3, RSD-C 2, RSD-S 3, Sequoia 2, OPT-Tree 2, DySpec 2"]
    },
    "beyond-verification": {
        "beyond-fig1-embedded": [RULES],
        "beyond-fig2-embedded": ["SD 2, block verification 2"],
    },
    "dsbd-fronts": {
        "dsbd-fig4-embedded": [f"{BEAMS}, SD 3 1, SpecInfer 1-1-3-1-1-1-1-1 1"],
        "dsbd-fig6-embedded": [f"{BEAMS}, SD 3 1, SpecInfer 1-1-3-1-1-1-1-1 1"],
        "dsbd-fig7-embedded": [BEAMS],
        "dsbd-fig8-embedded": ["t = 0.7 10, t = 0.9 10"],
        "dsbd-fig9-embedded": ["W_S = 2 4, W_S = 3 4, W_S = 4 4, W_S = 5 4, W_S = 6 4"],
    },
    "eagle-heads": {"eagle-fig3-embedded": [*DRAFTERS]},
    "eagle-mt-bench": {"eagle-fig1-embedded": ["EAGLE 1, EAGLE-2 1, EAGLE-3 1"]},
    "eagle-rules": {"eagle-fig2-embedded": [*EAGLES]},
    "mcsd-acceptance": {"mcsd-fig3": ["embedded 7, embedded_plain 7"]},
    "mcsd-search": {
        "mcsd-fig4-embedded-screen": ["decreasing widths 9, equal widths 3, increasing widths 9"]
    },
    "mcsd-search-monotone": {"mcsd-fig4-embedded-screen": [TRIED]},
    "redrafter-batches": {
        "redrafter-fig6-embedded": [
            "AR 6, SD 3 6, RSD-S 4x3 6, ReDrafter, exact match 2x5 6, ReDrafter, exact match 8x5 6",
            "ReDrafter, exact match 8x5, tree attention 6, "
            "ReDrafter, exact match 8x5, beams as rows 6",
        ]
    },
    "redrafter-beams": {
        "redrafter-fig5-embedded": ["up to 8 tokens 7, up to 16 tokens 7, up to 32 tokens 7", " 7"]
    },
    "redrafter-grid": {"redrafter-fig3": [KINDS], "redrafter-fig4-embedded": [HEADS]},
    "rsd-exp1": {"rsd-fig4-embedded": ["SD 4, SpecTr 4, RSD-C 4, RSD-S 4"]},
    "rsd-exp2": {"rsd-fig5-embedded": ["SD 5, SpecTr 5, RSD-C 5, RSD-S 5"]},
}
"""By experiment and file: name and number of marks of each series, of panels that differ."""


def said(panel):
    """A panel's series with their marks; fronts hang on what was measured, as does r."""
    counts = {}
    for series in panel.series:
        if series.layer.mark != "front":
            name = series.label.partition(", r = ")[0].replace("\n", " ")
            counts[name] = counts.get(name, 0) + len(series.rows)
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def told(sheet):
    return list(dict.fromkeys(said(panel) for panel in sheet.panels if panel.series))


@pytest.mark.parametrize("experiment", SERIES)
def test_committed_figures_have_these_series_and_lines_go_forward(experiment):
    sheets = committed_sheets(experiment)
    # What a search confirms, and so how much there is of it, hangs on what was measured.
    found = {name: told(sheet) for name, sheet in sheets.items() if "confirm" not in name}
    assert found == SERIES[experiment]
    named = [
        [(each.layer.mark, each.label, each.shape) for each in panel.series if each.label]
        for sheet in sheets.values()
        for panel in sheet.panels
    ]
    assert [names for names in named if len({*names}) < len(names)] == []
    lines = [
        list(line.rows[series.layer.order or series.x])
        for sheet in sheets.values()
        for panel in sheet.panels
        for series in panel.series
        if series.layer.mark == "line"
        for line in series.lines()
    ]
    assert [x for x in lines if any(a >= b for a, b in itertools.pairwise(x))] == []


@pytest.mark.parametrize(
    "experiment", ["redrafter-batches", "redrafter-beams", "mcsd-acceptance", "dsbd-fronts"]
)
def test_no_column_of_the_rows_can_stand_for_one_that_figures_derive(experiment):
    names = ("attention", "ways", "group", "score", "score_name", "merged")
    parts = ("form", "width", "depth", "nodes", "threshold", "paths", "order", "draft_length")
    sheets = committed_sheets(experiment, **dict.fromkeys((*names, *parts), "of another"))
    wanted = SERIES[experiment]
    assert {name: told(sheets[name]) for name in wanted} == wanted


def test_a_column_that_rows_and_figures_both_have_stops_the_drawing():
    rows = frame(row("sd", "3", block_efficiency=2.0))
    with pytest.raises(ValueError, match=naming("'tree.depth'")):
        derive(rows.assign(**{"tree.depth": 7}))
    heads = frame(head("redrafter", "mine", status="trained"))
    with pytest.raises(ValueError, match=naming("heads.csv", "'status'")):
        OWN.grid_of(heads, frame(row("redrafter", "4x3", draft="mine")))


def test_a_figure_that_cannot_be_drawn_is_not_left_out_in_silence(tmp_path, capsys):
    cells = [row("mcsd_wor", k, acceptance_rate=0.7, **{"tree.width": 1}) for k in "14"]
    write(tmp_path, "mcsd-acceptance", *cells)
    assert main(["all", "--results", str(tmp_path)]) == 2
    assert "'tree.width'" in capsys.readouterr().err
