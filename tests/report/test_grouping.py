"""Tables mix no unlike rows and read no name as markup; what a paper's file may say."""

import csv
import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from spec_bench.report.claims.ask import ClaimQuery
from spec_bench.report.cli.command_line import FORMATS
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import (
    group_rows,
    join_settings_counting_unstated,
    read_results_file,
    read_rows,
)
from spec_bench.report.data.splits import make_file_suffixes, split_by_settings
from spec_bench.report.figures import draw_item_figures
from spec_bench.report.papers.items import PaperColumn as Heading
from spec_bench.report.papers.pairs import find_pair_config
from spec_bench.report.papers.paper import (
    find_recipes_by_folder,
    get_figure,
    get_table,
    list_paper_names,
    load_paper,
)
from spec_bench.report.summary import format_groups_markdown as plain
from spec_bench.report.tables.build import (
    _describe_machines_and_settings,
    build_table,
    build_tables_by_setting,
)
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.report.tables.render import (
    format_table_latex,
    format_table_markdown,
    format_tables_csv,
    format_tables_html_page,
)
from spec_bench.system.files import escape_cell, get_data_folder
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.columns import Column
from spec_bench.vocabulary.published import COLUMNS, FILE
from tests.commands import report as main
from tests.report.rows import EMBEDDED, around, frame, redrafter_batches, row, write
from tests.report.shown import all_series, measured_places, panels, place, sheet, table
from tests.said import naming


def cells(**values):
    trees = (("sd", "2", 2.0), ("rsd_s", "3x2", 2.4))
    return [row(name, spec, block_efficiency=tau, **values) for name, spec, tau in trees]


def parts(*rows):
    return [(text, len(part)) for text, part in split_by_settings(frame(*rows), ())]


def both(**values):
    return [row(name, spec, **EMBEDDED, **values) for name, spec in (("ar", "-"), ("sd", "2"))]


def titles(*rows):
    return [group.title for group in group_rows(frame(*rows))]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("batch_size", (1, 4), ("batch size 1", "batch size 4")),
        ("batching", ("static", "continuous"), ("batching static", "batching continuous")),
        ("max_new_tokens", (32, 64), ("max new tokens 32", "max new tokens 64")),
        ("draft_temperature", (None, 0.0), ("draft temperature not stated", "draft temperature 0")),
        ("target", ("mine/a", "mine/b"), ("target mine/a", "target mine/b")),
    ],
)
def test_cells_that_ran_otherwise_are_groups_whose_headings_name_what_differs(name, values, said):
    found = group_rows(frame(*({**each, name: value} for value in values for each in both())))
    assert [group.title for group in found] == [f"xsum, {text}" for text in said]
    assert [list(group.rows.decoder) for group in found] == [["ar", "sd"]] * 2


def test_headings_name_nothing_that_all_agree_in_or_that_follows_from_the_task():
    assert titles(*both(batch_size=4, batching="static")) == ["xsum"]
    limits = [*both(task="xsum", max_new_tokens=64), *both(task="squad", max_new_tokens=16)]
    assert titles(*limits) == ["xsum", "squad"]
    more = [*limits, *both(task="squad", max_new_tokens=32)]
    assert titles(*more) == ["xsum", "squad, max new tokens 16", "squad, max new tokens 32"]


def test_what_an_older_file_or_a_server_leaves_open_is_one_unknown_value():
    older, newer = frame(*both()), frame(*both(batching="static"))
    found = group_rows(pd.concat([older, newer], ignore_index=True))
    assert [(group.title, len(group.rows)) for group in found] == [
        ("xsum, batching not stated", 2),
        ("xsum, batching static", 2),
    ]
    ours = both(device="cpu", dtype="float32", threads=1, batch_size=1)
    theirs = both(device="server", batch_size=1)
    assert titles(*ours, *theirs) == ["xsum, device cpu", "xsum, device server"]
    other = both(device="cpu", dtype="float32", threads=2, batch_size=1)
    assert titles(*ours, *theirs, *other) == [
        "xsum, device cpu, threads 1",
        "xsum, device server, threads not stated",
        "xsum, device cpu, threads 2",
    ]


def test_any_column_that_is_marked_so_tells_runs_apart(monkeypatch):
    mine = Column("precision", "precision", "of numbers", "setting", holds="text", apart="run")
    monkeypatch.setattr(columns, "COLUMNS", [*columns.COLUMNS, mine])
    rows = [*both(precision="float32"), *both(task="squad", precision="bfloat16")]
    assert titles(*rows) == ["xsum, precision float32", "squad, precision bfloat16"]
    assert titles(*both(someones_note="a"), *both(someones_note="b")) == ["xsum"]


def test_rows_are_split_by_what_differs_and_only_that_is_named():
    rows = [*cells(batch_size=1, batching="static"), cells(batch_size=4, batching="static")[0]]
    assert parts(*rows) == [("batch size 1", 2), ("batch size 4", 1)]
    assert split_by_settings(frame(*rows), ("batch_size",))[0][0] == ""


def test_what_belongs_to_the_task_splits_only_the_task_that_has_several():
    short, long = {"max_new_tokens": 16}, {"max_new_tokens": 64}
    rows = [*cells(**long), *cells(**short, task="squad")]
    assert parts(*rows) == [("", 4)]
    more = split_by_settings(frame(*rows, *cells(**long, task="squad")[:1]), ())
    assert {text: list(part.task) for text, part in more} == {
        "max new tokens 16": ["xsum", "xsum", "squad", "squad"],
        "max new tokens 64": ["xsum", "xsum", "squad"],
    }


def test_parts_of_a_search_have_the_prompts_of_every_task():
    rows = [
        each
        for stage, prompts in (("screen", "a1b2"), ("confirm", "c3d4"))
        for task in ("xsum", "wmt18_deen")
        for each in cells(task=task, stage=stage, prompts_digest=prompts + task)
    ]
    assert parts(*rows) == [("stage screen", 4), ("stage confirm", 4)]
    # What all rows of a part agree in is named even where it follows from the rest.
    assert parts(*(each for each in rows if each["task"] == "xsum")) == [
        ("stage screen, prompts a1b2xsum", 2),
        ("stage confirm, prompts c3d4xsum", 2),
    ]


def test_a_table_is_printed_once_for_each_way_in_which_its_cells_ran(tmp_path, capsys):
    fixed, moving = cells(batch_size=1), cells(batch_size=4, batching="continuous")[:1]
    write(tmp_path, "rsd-exp1", *fixed, *moving)
    first, second = grids = build_tables_by_setting(
        get_table("rsd/1"), MeasuredRows.read_below(tmp_path)
    )
    assert first.title.endswith(" (batch size 1, batching not stated)")
    assert second.setting == "batch size 4, batching continuous"
    assert [len(measured_places(grid)) for grid in grids] == [2, 1]
    assert first.commands and not second.commands
    asked = ["table", "rsd/1", "--results", str(tmp_path), "--format"]
    assert main([*asked, "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    ours = [line["setting"] for line in lines if line["block_efficiency_ours"]]
    assert ours == [first.setting, first.setting, second.setting]
    assert main([*asked, "html"]) == 0
    page = capsys.readouterr().out
    assert page.count("<html") == page.count("</html>") == 1
    assert page.count('<table class="paper">') == 2
    write(tmp_path, "rsd-exp1", *fixed)
    (only,) = build_tables_by_setting(get_table("rsd/1"), MeasuredRows.read_below(tmp_path))
    assert only.setting == "" and not only.title.endswith(")")


def test_a_papers_table_takes_rows_of_its_own_jobs_alone(tmp_path):
    write(tmp_path, "rsd-exp1", cells(max_new_tokens=128)[0])
    other = cells(pair="opt_13b", max_new_tokens=128)[0]
    write(tmp_path, "beyond-trees", *cells(max_new_tokens=48), other)
    grid = table("rsd/1", tmp_path)
    assert [place["value"] for place in measured_places(grid)] == [2.0]
    assert not any("other experiments" in note for note in grid.notes)
    # Of a pair that none of its jobs measured there is nothing else to show, and the note says so.
    moved = table("rsd/1", tmp_path, "opt_13b")
    assert any("1 of 1 cells come from other experiments" in note for note in moved.notes)


def test_a_figure_is_drawn_once_for_each_way_that_it_does_not_show_itself():
    rows = pd.concat([redrafter_batches().assign(max_new_tokens=limit) for limit in (16, 64)])
    found = draw_item_figures(get_figure("redrafter/6"), rows.reset_index(drop=True))
    assert [sheet.setting for sheet in found] == ["max new tokens 16", "max new tokens 64"]
    assert {len(sheet.rows) for sheet in found} == {6}  # batch sizes are its axis


def test_a_parts_file_is_named_by_what_tells_it_from_the_others():
    many = {
        "batch size 1, stage confirm, prompts 43f74adf, threads 2": "-confirm",
        "batch size 1, stage screen, prompts 5cb76eaa, threads 2": "-screen-prompts-5cb76eaa",
        "batch size 1, stage screen, prompts faa8eeb0, threads 2": "-screen-prompts-faa8eeb0",
    }
    assert make_file_suffixes(many) == many
    sizes = ["batch size 4, batching continuous", "batch size 1, batching not stated"]
    assert list(make_file_suffixes(sizes).values()) == ["-batch-size-4", "-batch-size-1"]
    assert make_file_suffixes([""]) == {"": ""}
    assert make_file_suffixes(["data source a/b: c"]) == {
        "data source a/b: c": "-data-source-a-b-c"
    }
    # Those that long texts tell have short names of their own.
    many = [f"stage screen, machine {'2 x AMD EPYC, ' * 20}engine {number}" for number in (0, 1)]
    assert list(make_file_suffixes(many).values()) == ["-engine-0", "-engine-1"]
    alike = [f"machine {'2 x AMD EPYC ' * 20}of {place}" for place in ("here", "there")]
    names = {*make_file_suffixes(alike).values()}
    assert len(names) == 2 and all(len(name) <= 40 for name in names)
    assert all(name.startswith("-machine-2-x-AMD-EPYC") for name in names)
    odd = {*make_file_suffixes(["stage a b", "stage a-b"]).values()}  # the same word of two texts
    assert len(odd) == 2 and all(name.startswith("-a-b-") for name in odd)


def test_rows_that_lack_many_columns_are_told_by_how_many():
    assert (
        join_settings_counting_unstated(["batch size 4", "seed not stated"])
        == "batch size 4, seed not stated"
    )
    many = ["batch size 4", *(f"{name} not stated" for name in ("seed", "device", "dtype"))]
    assert join_settings_counting_unstated(many) == "batch size 4, 3 facts not stated"


TAG = "<script>alert('|')</script>"
PREAMBLE = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n"
needs_pdflatex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed"
)


def hostile(text):
    """A table that has a text in every place where one may come from outside."""
    cells = (
        place("1.5", value=1.0, low=0.5, high=1.5, mark=text, ours=True),
        place("2", state=f"failed: {text}"),
    )
    columns = (Heading(name=text, title=text, group=text), Heading(name="y", title="y"))
    lines = [((text, text), "block", cells), (("", "other"), "block", cells[::-1])]
    return sheet(lines, columns, text, (text, "b"), notes=(text,), commands=(text,))


def bars(text):
    """How many columns end in each line of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.replace("\\|", "").count("|") for line in lines]


def test_no_format_opens_a_tag_and_columns_stay():
    page, text = (
        format_tables_html_page(hostile(TAG)),
        format_table_markdown(hostile(TAG)).split("```")[0],
    )
    assert "<script>" not in page + text
    assert page.count("&lt;script&gt;") >= 8
    assert len({*bars(text)}) == 1


@pytest.mark.parametrize("name", ["markdown", "latex"])
def test_a_line_break_in_a_name_ends_no_line(name):
    text = FORMATS[name]([hostile("first\nsecond")])
    assert not any(line.startswith("second") for line in text.splitlines())


def test_latex_runs_no_command_of_a_name():
    text = format_table_latex(hostile("\\input{secret}%"))
    assert "\\textbackslash{}input\\{secret\\}\\%" in text
    assert "\\input{secret}" not in text.split("% missing cells")[0]


@pytest.mark.parametrize("formula", ["=cmd|'/c calc'!A1", "+1+cmd()", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_csv_cell_is_no_formula(formula):
    cells = [
        cell
        for line in csv.reader(io.StringIO(format_tables_csv(hostile(formula))))
        for cell in line
    ]
    assert f"'{formula}" in cells
    assert not any(cell.startswith(("=", "@", "\t")) for cell in cells)


@pytest.mark.parametrize("number", ["-1.25", "+0.5", "-3e-05", "-", "", "0.7", "4x2@0.9"])
def test_numbers_and_trees_stay_as_they_are_in_csv(number):
    assert escape_cell(number) == number


def test_the_plain_table_of_a_results_file_opens_no_tag_and_keeps_its_columns(tmp_path):
    failed = row("sd", "2", pair=TAG, task=TAG, status="failed", reason=f"ValueError: {TAG}\nmore")
    strange = row("a|b", TAG, pair=TAG, task=TAG, block_efficiency=1.5, run_id="ab")
    write(tmp_path, "mine", strange, failed)
    file = tmp_path / "mine" / "results.csv"
    text = plain(group_rows(read_results_file(file)), file)
    assert "<script>" not in text
    assert bars(text) == [4] * 4


def test_a_command_for_a_pair_of_any_name_is_one_command(tmp_path):
    name = "mine; rm -rf x"
    write(tmp_path, "rsd-exp1", row("ar", pair=name, draft="a b", target="t"))
    (command,) = table("rsd/1", tmp_path, name).commands
    words = shlex.split(command)[-4:-1]
    assert words == ["pair.target=t", 'pair.draft="a b"', f'pair.name="{name}"']


def compiled(folder, *tables):
    """The log of a document with these tables; fails where LaTeX finds an error."""
    source = PREAMBLE + "\n\\clearpage\n".join(tables) + "\n\\end{document}\n"
    (folder / "tables.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert found.returncode == 0, found.stdout[-2000:]
    return found.stdout


@needs_pdflatex
def test_every_printed_table_compiles_and_fits_the_page(tmp_path):
    nothing = MeasuredRows(read_rows([]))
    items = [item for name in list_paper_names() for item in load_paper(name).tables]
    log = compiled(tmp_path, *(format_table_latex(build_table(item, nothing)) for item in items))
    assert "Overfull" not in log and "Float too large" not in log
    assert f"({len(items)} pages" in log


@needs_pdflatex
@pytest.mark.parametrize("pair", ["llama2_chat_7b", "embedded"])
def test_a_table_with_measured_failed_and_missing_cells_compiles(tmp_path, pair):
    failed = {"status": "failed", "reason": "ValueError: 100% of a_b^2 & ~{c}#$\\"}
    cells = (
        row("ar", "-", pair=pair, block_efficiency=1.0, rouge2=(0.1, 0.08, 0.12)),
        row("sd", "2", pair=pair, block_efficiency=(2.2, 2.1, 2.3), lossless="simulated"),
        row("rsd_s", "3x2", pair=pair, **failed),
    )
    write(tmp_path, "rsd-exp1", *cells)
    assert "Overfull" not in compiled(tmp_path, format_table_latex(table("rsd/7", tmp_path, pair)))


@needs_pdflatex
def test_letters_that_latex_reads_otherwise_are_written_out(tmp_path):
    text = "\\ & % $ # _ { } ~ ^ × α Δ γ τ ± < > [a] – é"
    line = ((text,), "", [place("1.0", best=True, underlined=True)])
    columns = (Heading(name="x", title=text),)
    rendered = format_table_latex(
        sheet([line, line], columns, text, (text,), name="a_b/1", notes=(text,))
    )
    compiled(tmp_path, rendered)
    assert "\\underline{\\textbf{1.0}}" in rendered


PAPER = """
paper: "Mine: a paper"
arxiv: "0000.00000"
machine: one GPU
tables:
  - numbers: [1]
    recipe: NAME=first
    title: "{target} with {draft} on {task}"
    heads: {decoder: decoder, tree: spec}
    block: [task]
    columns:
      - {metric: block_efficiency, digits: 2}
"""
NUMBERS = (("ar", "-", "1.00"), ("sd", "3", "2.10"), ("rsd_s", "4x3", "2.50"))


def package(folder, paper, monkeypatch, text=PAPER):
    """An installed package of one paper, as pip leaves it; returns the paper's folder."""
    own = folder / f"package_of_{paper}" / "experiments" / paper
    own.mkdir(parents=True)
    (own / "paper.yaml").write_text(text.replace("NAME", paper), encoding="utf-8")
    (own / "first.yaml").write_text(f"name: {paper}-first\ncells: [sd:3, rsd_s:4x3]\n")
    numbers = pd.DataFrame(NUMBERS, columns=["decoder", "spec", "value"])
    same = {"table": 1, "target": "OPT-13B", "draft": "OPT-125M", "task": "xsum"}
    numbers = numbers.assign(**same, metric="block_efficiency").reindex(columns=COLUMNS)
    numbers.to_csv(own / FILE, index=False)
    info = folder / f"package_of_{paper}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {own.parts[-3]}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[spec_bench.configs]\n{paper} = package_of_{paper}\n")
    (own.parents[1] / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    return own


def test_a_table_of_another_packages_paper_is_filled_from_measured_rows(tmp_path, monkeypatch):
    package(tmp_path, "other_paper", monkeypatch)
    assert "other_paper" in list_paper_names()
    own = {("ar", "-"): (1.0, 0.0), ("sd", "3"): (2.0, 0.1), ("rsd_s", "4x3"): (2.4, 0.1)}
    cells = (row(*c, pair="opt_13b", block_efficiency=around(*tau)) for c, tau in own.items())
    results = write(tmp_path / "results", "other_paper-first", *cells)
    text = format_table_markdown(table("other_paper/1", results))
    assert text.startswith("### other_paper/1: OPT-13B with OPT-125M on XSum\n")
    assert "| RSD-S | 4x3 | **2.50** | **2.40** [2.30, 2.50] | -0.10 |" in text
    assert "| SD | 3 | 2.10 | 2.00 [1.90, 2.10] | -0.10 |" in text


def test_a_table_in_blocks_has_each_blocks_lines_together(tmp_path, monkeypatch):
    text = PAPER.replace("{decoder:", "{length: axis_value, decoder:").replace(
        "task]", "axis_value]"
    )
    own = package(tmp_path, "blocks", monkeypatch, text)
    numbers = pd.read_csv(own / FILE, dtype=str, keep_default_na=False)[1:]
    both = [numbers.assign(axis="draft_length", axis_value=value) for value in ("2", "3")]
    pd.concat(both).sort_values("decoder").to_csv(own / FILE, index=False)  # decoder by decoder
    text = format_table_markdown(table("blocks/1", tmp_path))
    lines = [line.strip("| ").split(" | ")[:2] for line in text.splitlines()[4:8]]
    assert lines == [["2", "RSD-S"], ["SD", "3"], ["3", "RSD-S"], ["SD", "3"]]


def test_sampling_that_differs_by_task_is_told_with_the_tasks(tmp_path):
    rows = [
        row("sd", "2", pair="llama2_7b", task=task, block_efficiency=2.0, temperature=warm)
        for task, warm in (("xsum", 0.3), ("dolly", 1.0))
    ]
    told = _describe_machines_and_settings(rows)
    assert told.startswith("machine not stated, temperature 0.3 (XSum), 1 (Dolly), batch size 1")
    told = _describe_machines_and_settings([*rows, {**rows[0], "temperature": 1.0}])
    assert "temperature 0.3, 1, batch size" in told


WRONG = {
    "misspelt_recipe": ("recipe:", "recipy:", "table 1: .*recipy; did you mean recipe[?]"),
    "misspelt_key": ("digits: 2", "digts: 2", r"unknown setting columns\[0\]\.digts; did you mean"),
    "wrong_type": ("digits: 2", "digits: two", r"table 1: columns\[0\]\.digits .*, got 'two'"),
    "wrong_choice": ("block: [task]", "other_pair: above", r"table 1: other_pair .*'above'"),
    "wrong_source": ("tree: spec", "tree: spc", r"no labels come from 'spc'; .* decoder, spec"),
    "wrong_name": ("on {task}", "on {taks}", r"table 1: .*no \{taks\} in titles; .*task"),
    "no_heads": ("heads: {decoder: decoder, tree: spec}", "", r"table 1: heads is missing: .*"),
    "no_title": ('paper: "Mine: a paper"', "", "'paper' is missing"),
    "no_list": ("tables:", "tables: 3\nclaims:", "tables must be a list of mappings"),
    # What a paper of before is told to do.
    "old_claims": ("tables:", "claims: []\ntables:", r"claims\.py .*experiments/README\.md"),
    "old_figures": (
        "tables:",
        "figures:\n  - {number: 1, title: a, recipe: NAME=first, drawing: {x: a, y: b}}\ntables:",
        r"figures\.py .*experiments/README\.md",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_paper_cannot_say_is_a_line_with_file_and_key(name, tmp_path, monkeypatch):
    right, wrong, named = WRONG[name]
    own = package(tmp_path, name, monkeypatch, PAPER.replace(right, wrong))
    with pytest.raises(ValueError, match=rf"^{own / 'paper.yaml'}[^\n]*{named}[^\n]*$"):
        load_paper(name)


def test_a_metric_that_is_no_column_of_results_is_refused_with_the_near_one(tmp_path, monkeypatch):
    misspelt = PAPER.replace("block_efficiency", "blok_efficiency")
    own = package(tmp_path, "misspelt_metric", monkeypatch, misspelt)
    named = r"'blok_efficiency'.* did you mean block_efficiency"
    with pytest.raises(ValueError, match=rf"^{own / 'paper.yaml'}[^\n]*{named}"):
        load_paper("misspelt_metric")


def test_a_column_that_the_paper_does_not_print_shows_the_measured_numbers(tmp_path, monkeypatch):
    columns = "columns:\n      - {metric: mbsu, digits: 2}"
    package(tmp_path, "without_mbsu", monkeypatch, PAPER.replace("columns:", columns))
    cell = row("sd", "3", pair="opt_13b", block_efficiency=around(2.0, 0.1), mbsu=around(1.9, 0.1))
    results = write(tmp_path / "results", "without_mbsu-first", cell)
    assert "| SD | 3 | 1.90 [1.80, 2.00] | 2.10 | 2.00 " in format_table_markdown(
        table("without_mbsu/1", results)
    )


BROKEN = {  # file, what it has, what stands there instead, what the line names
    "value": (FILE, ",2.50,", ",2.5x,", r"reference\.csv', line 4: value .*'2\.5x'"),
    "tree": (FILE, ",4x3,", ",4by3,", r"line 4: .*spec '4by3' .* 4x3"),
    "task": (FILE, "xsum,,rsd_s", "xsumm,,rsd_s", "line 4: .*task 'xsumm'; did you mean xsum"),
    "decoder": (FILE, "rsd_s", "rsd_z", "line 4: .*decoder 'rsd_z'; did you mean rsd_s"),
    "yaml": ("paper.yaml", "heads: {", "heads: [{", "paper.yaml: [^<]* in line 10, "),
    "recipe": ("paper.yaml", "=first", "=second", "second.yaml"),
    "claims": ("claims.py", "", "def claim(ask):\n", r"claims\.py: (Syntax|Indentation)Error"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_paper_of_a_package_is_one_line_and_the_others_are_read(
    name, tmp_path, monkeypatch, capsys
):
    file, right, wrong, named = BROKEN[name]
    own = package(tmp_path, f"broken_{name}", monkeypatch) / file
    text = own.read_text("utf-8") if own.is_file() else ""
    own.write_text(text.replace(right, wrong) if right else wrong, encoding="utf-8")
    known = find_recipes_by_folder()
    assert known["rsd-exp1"] == "rsd=exp1" and not any("broken" in each for each in known)
    (line,) = [each for each in capsys.readouterr().err.splitlines() if f"broken_{name}" in each]
    assert re.search(f"^warning: .*{named}", line)


def test_of_two_papers_of_one_name_the_first_is_read_with_a_warning(tmp_path, monkeypatch, capsys):
    own = package(tmp_path, "rsd", monkeypatch)
    assert load_paper("rsd").folder != own and "rsd" in list_paper_names()
    assert re.match(naming("two papers", "rsd", own), capsys.readouterr().err)


def test_a_paper_whose_pair_no_config_names_says_so(tmp_path, monkeypatch):
    package(tmp_path, "unknown_pair", monkeypatch)
    own = tmp_path / "package_of_unknown_pair/experiments/unknown_pair" / FILE
    own.write_text(own.read_text("utf-8").replace("OPT-13B", "Mine-13B"))
    text = format_table_markdown(table("unknown_pair/1", tmp_path))
    assert "was run on" not in text and "no pair's config" in text


def test_the_readmes_files_are_a_paper_and_its_commands_work(tmp_path, monkeypatch, capsys):
    readme = (get_data_folder("experiments") / "README.md").read_text("utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in readme] == []
    own = package(tmp_path, "mine", monkeypatch)
    (own.parents[1] / "conf/pair").mkdir(parents=True)
    names = (
        "../../conf/pair/mine.yaml",
        "first.yaml",
        FILE,
        "paper.yaml",
        "figures.py",
        "claims.py",
    )
    commands, *files = re.findall(r"```(?:bash|yaml|csv|python)\n(.*?)```", readme, re.DOTALL)
    for name, text in zip(names, files, strict=True):
        (own / name).write_text(text, encoding="utf-8")
    find_pair_config.cache_clear()
    monkeypatch.chdir(tmp_path)
    told = {}
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)[1:]
        if words[0] != "run":
            assert main(words) == 0
            told[line] = capsys.readouterr().out
            continue
        (before,) = told.values()
        assert "| RSD-S | 3x2 | 2.20 |" in before and " ".join(words[:4]) in before
        cells = ("sd", "2", 2.0), ("sd", "3", 2.4), ("rsd_s", "3x2", 2.2), ("rsd_s", "3x3", 2.8)
        rows = (row(*c[:2], pair="mine", block_efficiency=around(c[2], 0.1)) for c in cells)
        write(tmp_path / "results", "mine-first", *rows)
    _, after, figure, at_home, checks = told.values()
    assert "of 1 check, 1 holds" in at_home
    assert "| RSD-S | 3x2 | 2.20 | 2.20 [2.10, 2.30] | +0.00 |" in after
    assert "mine-fig2-mine.png" in figure and "“Trees are ahead of chains.” (Section 5)" in checks
    assert main(["list", "mine"]) == 0 and capsys.readouterr().out.count("4/4 cells: mine") == 2
    (drawn,) = draw_item_figures(get_figure("mine/2"), read_rows([*tmp_path.rglob("results.csv")]))
    assert [len(each.rows) for each in all_series(*panels(drawn)) if each.printed] == [2, 2]


def test_a_figures_rows_of_other_runs_are_of_its_tasks_and_named(tmp_path, monkeypatch):
    figure = "{number: 1, title: a, recipe: NAME=first, any_pair: true, tasks: [xsum]}"
    own = package(tmp_path, "any", monkeypatch, f"{PAPER}figures: [{figure}]")
    (own / "figures.py").write_text(
        "from spec_bench.report.figures.grid import draw_panels\n\n"
        "def figure_1(cells):\n"
        "    return draw_panels(cells, 'tree.depth', 'mbsu')\n"
    )
    other = {**EMBEDDED, "experiment": "others", "mbsu": 1.5}
    rows = frame(*(row("sd", "3", task=task, **other) for task in ("xsum", "dolly")))
    (drawn,) = draw_item_figures(get_figure("any/1"), rows)
    assert [*drawn.rows.task] == ["xsum"] and drawn.missing == ("rows of others, not of any=first",)
    with pytest.raises(ValueError, match="nothing measured for figure any/1"):
        draw_item_figures(get_figure("any/1"), rows[rows.task == "dolly"])
    (drawn,) = draw_item_figures(get_figure("any/1"), rows.assign(experiment="any-first"))
    assert ([*drawn.rows.task], drawn.missing) == (["xsum", "dolly"], ())


def test_a_claim_on_a_folder_that_no_recipe_writes_is_refused_with_the_near_one():
    ask = ClaimQuery(frame(row("sd", "2", experiment="mine")), RecordReader(Path()))
    assert len(ask.of("rsd-exp1").rows) == len(ask.of("mine").rows) == 1
    with pytest.raises(ValueError, match="'rsd-exp'; did you mean rsd-exp1 or rsd-exp2"):
        ask.of("rsd-exp")
