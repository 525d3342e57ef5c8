"""Tables say with which settings of the paper's, and which of ours, their cells were measured."""

from pathlib import Path

from spec_bench.report.papers.paper import find_table, load_paper
from spec_bench.report.tables.build import build_table, build_tables
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import list_paper
from tests.report.rows import row, write

ALPACA = {"pair": "vicuna_13b_68m", "task": "alpaca", "temperature": 1.0}
WMT = {**ALPACA, "task": "wmt14_ende", "prompts_digest": "1"}


def test_the_ablation_rather_shows_the_tree_that_the_paper_found_best(tmp_path):
    other = [row(each, "4-2-1", **ALPACA, speedup=1.1) for each in ("mcsd_wor", "mcsd", "mcns")]
    write(tmp_path, "mcsd-ablation", *other, row("mcsd_wor", "16-1", **ALPACA, speedup=1.6))
    grid = build_table(find_table("mcsd/4"), Measured.below(tmp_path))
    assert any("vicuna_13b_68m 16x1." in note for note in grid.notes)
    shown = grid.cells.value[grid.cells.ours].tolist()
    assert shown[0] == 1.6
    assert 1.1 not in shown


def test_answers_that_end_at_a_newline_and_those_that_run_on_are_two_tables(tmp_path):
    cells = [
        row("mcsd_wor", "1", **WMT, stop_rule=rule, acceptance_rate=rate)
        for rule, rate in (("eos+newline", 0.25), ("eos", 0.24))
    ]
    write(tmp_path, "mcsd-acceptance", *cells)
    one, other = build_tables(find_table("mcsd/1"), Measured.below(tmp_path))
    assert "stop rule eos+newline" in one.title
    assert any("WMT14 En-De: an answer ends at eos or newline" in note for note in one.notes)
    assert "(stop rule eos)" in other.title
    assert not any("task.stop=[]" in note for note in other.notes)


def test_commands_train_the_heads_that_nobody_published_before_they_decode():
    nothing = Measured.below(Path("no such folder"))
    *trained, run = build_table(find_table("redrafter/1"), nothing).commands
    assert [command.split()[2] for command in trained] == ["spec_bench.train"] * 2
    sizes = zip((4, 5), trained, strict=True)
    assert all(f"head=redrafter head.blocks={size}" in command for size, command in sizes)
    assert "redrafter=decoding" in run
    (sweep,) = build_table(find_table("mcsd/4"), nothing).commands
    assert "spec_bench.train" not in sweep


def test_the_list_names_the_grid_of_heads_once_and_has_them_trained_first():
    text = list_paper(load_paper("redrafter"), Measured.below(Path("no such folder")))
    commands = ("python -m", "spec-bench")
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(commands)]
    assert len(lines) == len(set(lines))
    (grid,) = [place for place, line in enumerate(lines) if "redrafter=grid" in line]
    assert "training=redrafter_grid" in lines[grid - 1]
    assert "-m redrafter=grid" in lines[grid]
    assert "pair.heads.redrafter=FOLDER,FOLDER" in lines[grid]
