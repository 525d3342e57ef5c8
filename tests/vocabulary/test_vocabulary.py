"""Columns, names, the shorthand of trees and the papers' numbers: each said once."""

import ast
import re
from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
import yaml

from spec_bench.decode.config import read_decoder
from spec_bench.report.papers.items import list_recipe_cells
from spec_bench.settings.configs import get_conf_dir, get_experiments_dir
from spec_bench.vocabulary import columns, decoders, names
from spec_bench.vocabulary.columns import COLUMNS, Column
from spec_bench.vocabulary.decoders import (
    COLOURS,
    find_canonical_name,
    find_decoder,
    load_decoder_settings,
    render_decoders_table,
)
from spec_bench.vocabulary.published import COLUMNS as PRINTED
from spec_bench.vocabulary.published import (
    FILE,
    KEYS,
    iter_published_numbers,
    pivot_numbers,
    read_published_numbers,
)
from spec_bench.vocabulary.spec import Spec, parse_tree_spec
from tests.said import naming, one_line

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PACKAGE = ROOT / "spec_bench"
DECODERS = sorted((get_conf_dir() / "decoder").glob("*.yaml"))


def test_every_name_of_the_committed_results_has_a_line():
    files = [*RESULTS.rglob("results.csv"), *RESULTS.rglob("screening.csv")]
    found = {name for path in files for name in pd.read_csv(path, nrows=0)}
    assert files and found <= columns.define_all_column_names().keys()


def test_every_number_says_what_it_is_and_no_name_stands_twice():
    every = [name for each in COLUMNS for name in each.names]
    assert len(every) == len(set(every))
    for each in COLUMNS:
        assert each.title and each.definition, each.name
        assert not each.interval or each.holds == "number", each.name


def test_names_are_ordered_and_known_by_their_columns_and_a_modules_score_by_its_interval():
    assert columns.order_column_names(
        ["mbsu_high", "other", "speedup", "mbsu", "mbsu_low", "pair"]
    ) == [*("pair", "mbsu", "mbsu_low", "mbsu_high", "speedup", "other")]
    assert (
        columns.define_all_column_names()["mbsu_low"]
        == "lower end of the 95% interval of mbsu (over prompts)"
    )
    there = ["meteor", "meteor_low", "meteor_high", "spec", "bleu", "someones_note"]
    assert [each.name for each in columns.get_columns(there)] == ["spec", "bleu", "meteor"]
    assert columns.select_score_names(there) == ["bleu", "meteor"]
    with pytest.raises(ValueError, match="'blue'"):
        columns.get_column("blue")


def test_a_column_of_another_package_comes_last_and_takes_no_name(monkeypatch):
    monkeypatch.setattr(columns, "COLUMNS", list(COLUMNS))
    mine = columns.register_column(Column("waste", "waste", "rejected nodes", "efficiency"))
    assert columns.register_column(mine) is mine
    assert columns.COLUMNS[-1] is columns.get_column("waste")
    with pytest.raises(ValueError, match="mbsu_low"):
        columns.register_column(Column("mbsu_low", "low", "the lower end", "efficiency"))


def test_the_documents_that_are_made_from_columns_and_decoders_are_those_that_are_made():
    # Otherwise: python -m spec_bench.vocabulary.columns > results/README.md, or .decoders.
    assert (RESULTS / "README.md").read_text("utf-8") == columns.render_columns_markdown()
    text = (get_conf_dir() / "decoder/README.md").read_text("utf-8")
    (table,) = re.findall(r"<!-- decoders -->\n(.*?)<!-- /decoders -->", text, re.DOTALL)
    assert table.strip() == render_decoders_table()
    page = (ROOT / "docs/decoders.md").read_text("utf-8")
    assert [path.stem for path in DECODERS if f"`{path.stem}`" not in page] == []


def test_decoders_that_are_one_configuration_name_each_other_and_no_others_do():
    settings = {path.stem: load_decoder_settings([get_conf_dir()], path.stem) for path in DECODERS}
    alike = defaultdict(set)
    for name, each in settings.items():
        alike[repr(replace(read_decoder(each), name=""))].add(name)
    named = defaultdict(set)
    for name in settings:
        named[find_canonical_name(name)].add(name)
    assert sorted(map(sorted, alike.values())) == sorted(map(sorted, named.values()))


def listed(source):
    """Literals of at least three measured columns: tuples, lists, sets, tables of constants."""
    kinds, plain = ("identity", "setting", "state"), (ast.Constant, ast.Tuple, ast.List)
    measured = {name for each in COLUMNS if each.kind not in kinds for name in each.names}
    found = []
    for node in ast.walk(ast.parse(source)):
        members = getattr(node, "elts", [])
        if isinstance(node, ast.Dict) and all(isinstance(each, plain) for each in node.values):
            members = node.keys
        words = {str(each.value) for each in members if isinstance(each, ast.Constant)}
        found += [words] if len(words & measured) >= 3 else []
    return found


def test_hardly_any_file_lists_columns():
    paths = {*PACKAGE.rglob("*.py")} - {*PACKAGE.glob("metrics/*.py")}  # these define them
    found = {path: listed(path.read_text("utf-8")) for path in paths}
    assert sum(map(len, found.values())) <= 10, {str(p): each for p, each in found.items() if each}
    assert listed('X = {"mbsu": "MBSU", "speedup": "x", "bleu": "BLEU"}')
    assert listed('f(["mbsu", *("mbsu_low", "mbsu_high", "f1")])')
    assert not listed('row = {"mbsu": a, "speedup": b, "bleu": c}')


FILES = sorted((get_conf_dir() / "decoder").glob("*.yaml"))
YAMLS = sorted(get_experiments_dir().glob("*/paper.yaml"))
RECIPES = [path for path in get_experiments_dir().glob("*/*.yaml") if path not in YAMLS]
IN_FILES = {path.stem for path in FILES}
IN_PAPERS = {each for p in YAMLS for each in yaml.safe_load(p.read_text()).get("decoders", ())}
CELLS = (cell for p in RECIPES for cell in list_recipe_cells(f"{p.parent.name}={p.stem}"))
IN_RECIPES = {cell.partition(":")[0] for cell in CELLS}
ALL = sorted({*IN_FILES, *IN_PAPERS, *IN_RECIPES})
MINE = """
name: mine
drafter: {kind: language_model}
tree: {policy: chain, depth: 3}
verifier: {rule: recursive_rejection, replacement: false}
display: {title: My own, colour: sky, marker: D}
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_decoder_of_the_configs_says_how_it_is_shown(path):
    display = yaml.safe_load(path.read_text("utf-8"))["display"]
    assert {"title", "colour", "marker", "tree", "source"} <= display.keys()
    assert all(display.values())
    colour = COLOURS[display["colour"]]
    assert names.get_decoder_style(path.stem) == decoders.DecoderStyle(
        display["title"], colour, display["marker"]
    )
    assert all(re.fullmatch(r"#[0-9A-F]{6}", each) for each in colour)


def test_every_cell_of_a_recipe_has_a_title_of_its_own_said_in_one_place():
    assert len(IN_RECIPES - IN_FILES) > 10
    assert [name for name in ALL if find_decoder(name) is None] == []
    assert not IN_PAPERS & IN_FILES
    titles = Counter(names.get_decoder_style(name).title for name in ALL)
    assert [title for title, count in titles.items() if count > 1] == []


@pytest.mark.parametrize(
    ("name", "title", "colour", "marker"),
    [
        ("eagle3_sd", "EAGLE-3, SD", "blue", "o"),  # a drafter in place of the decoder's
        ("dyspec_traversal", "DySpec, traversal", "sky", "X"),  # a rule likewise
        ("eagle3_dyspec_traversal", "EAGLE-3, DySpec, traversal", "sky", "X"),
        ("spectr_traversal", "SpecTr's paths, traversal", "orange", "X"),  # a paper says so
        ("eagle3_spectr_traversal", "EAGLE-3, SpecTr's paths, traversal", "orange", "X"),
    ],
)
def test_a_cell_that_replaces_a_part_is_shown_by_its_parts(name, title, colour, marker):
    assert find_decoder(name) == decoders.DecoderStyle(title, COLOURS[colour], marker)


def test_what_is_not_listed_keeps_its_name():
    assert (
        names.get_decoder_style("mine").title
        == names.get_task_title("mine")
        == names.get_decoder_or_task_title("mine")
        == "mine"
    )
    assert find_decoder("redrafter_2") is None
    assert (names.get_decoder_or_task_title("rsd_s"), names.get_decoder_or_task_title("xsum")) == (
        "RSD-S",
        "XSum",
    )
    assert not {each.name for each in COLUMNS} & {*ALL, *names.TASKS}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of configs beside ours, with the file of one decoder."""
    path = tmp_path / "conf" / "decoder" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(MINE, encoding="utf-8")
    folders = (get_conf_dir(), tmp_path / "conf"), (get_experiments_dir(),)
    monkeypatch.setattr(decoders, "_list_config_and_paper_folders", lambda: folders)
    return path


def test_another_packages_decoder_is_shown_as_its_yaml_says(mine):
    assert names.get_decoder_style("mine") == decoders.DecoderStyle("My own", COLOURS["sky"], "D")
    assert names.get_decoder_or_task_title("mine_traversal") == "My own, traversal"
    assert "display" not in load_decoder_settings([mine.parents[1]], "mine")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("sky", "red", "display.colour must be one of blue, vermillion, green, purple, orange, "),
        ("marker: D", "marker: x", "display.marker must be one of o, s, ^, D, v, P, X, got 'x'"),
        ("marker", "shape", "unknown setting display.shape; how a decoder is shown has "),
        (
            "{title: My own, colour: sky, marker: D}",
            "red",
            "display must be a mapping of settings, got 'red'",
        ),
    ],
)
def test_a_wrong_colour_or_marker_is_named_with_its_file_and_the_choices(mine, right, wrong, said):
    mine.write_text(MINE.replace(right, wrong), encoding="utf-8")
    for ask in (
        lambda: load_decoder_settings([mine.parents[1]], "mine"),
        lambda: find_decoder("mine"),
    ):
        with one_line(re.escape(f"{mine}: {said}")):
            ask()


@pytest.mark.parametrize(
    ("text", "form", "numbers", "depth", "width", "nodes", "widths"),
    [
        ("-", "root", (), 0, 0, 0, ()),
        ("3", "number", (3,), 3, 3, 3, (3,)),
        ("2-2-1", "levels", (2, 2, 1), 3, 2, 10, (2, 2, 1)),
        ("1-4", "levels", (1, 4), 2, 4, 5, (1, 4)),
        ("4x3", "product", (4, 3), 3, 4, 12, None),
        ("4x2@0.9", "threshold", (4, 2), 2, 4, 8, None),
    ],
)
def test_a_shorthand_says_its_form_and_its_size(text, form, numbers, depth, width, nodes, widths):
    spec = parse_tree_spec(text)
    assert (spec.form, spec.numbers) == (form, numbers)
    assert (spec.depth, spec.width, spec.nodes) == (depth, width, nodes)
    assert spec.widths == widths


@pytest.mark.parametrize("text", ["mc_sim_7b_63", "3 nodes", "4x", "-3", "2--1", "٣", "1" * 5000])
def test_what_is_no_number_is_a_name_without_a_size(text):
    spec = parse_tree_spec(text)
    assert (spec.form, spec.name, spec.widths) == ("name", text, None)
    for size in ("depth", "width", "nodes"):
        with pytest.raises(ValueError, match=size):
            getattr(spec, size)


def test_a_shorthand_written_in_two_ways_is_one():
    assert (
        parse_tree_spec(" 4x2@.90 ") == parse_tree_spec("4x2@0.9") == Spec("threshold", (4, 2), 0.9)
    )
    assert parse_tree_spec(7) == parse_tree_spec("7")
    with pytest.raises(ValueError, match="empty"):
        parse_tree_spec("  ")


# By metric how many numbers the checked copies of the papers' tables hold, and their sum.
CHECKED = {
    "rsd": "bleu 872 320.119, block_efficiency 1968 4215.627, mbsu 1968 4047.520, "
    "rouge2 881 115.011, token_rate 1968 50495.215",
    "mcsd": "acceptance_rate 184 106.65, acceptance_rate_gain 76 13.06, "
    "block_efficiency 128 245.12, speedup 128 188.91",
    "redrafter": "block_efficiency 10 28.57, drafter_size 10 6.30, judge_score 21 71.80, "
    "speedup 21 55.16, token_rate 10 764.43",
    "eagle": "block_efficiency 6 25.32, speedup 23 78.52, speedup_math_reasoning 5 14.12, "
    "speedup_mt_bench 5 14.24, speedup_qa 5 11.13, speedup_rag 5 11.04, "
    "speedup_summarization 5 12.11, speedup_translation 5 9.81",
    "dsbd": "energy_j_per_token 16 130.35, exact_match 8 580, execution_accuracy 8 90, "
    "perplexity 16 27.06, token_rate 16 489.92",
}
PAPERS = {paper: read_published_numbers(get_experiments_dir() / paper / FILE) for paper in CHECKED}


@pytest.mark.parametrize("paper", CHECKED)
def test_every_printed_number_of_the_checked_copies_is_here(paper):
    values = defaultdict(list)
    for row in PAPERS[paper]:
        if row["value"]:
            values[row["metric"]].append(Decimal(row["value"].rstrip("B")))
    found = [f"{name} {len(own)} {sum(own)}" for name, own in sorted(values.items())]
    assert ", ".join(found) == CHECKED[paper]


@pytest.mark.parametrize(
    ("task", "temperature", "values"), [("xsum", 0.3, ["2"]), ("xsum", 1.0, ["3"]), ("xsum", 0, [])]
)
def test_a_pairs_printed_numbers_are_those_of_its_task_temperature_and_metric(
    task, temperature, values
):
    row = {"target": "a", "draft": "b", "task": "xsum", "temperature": "0.3", "spec": "3"}
    row |= {"metric": "speedup", "value": "2"}
    others = [{"temperature": "1.0", "value": "3"}, {"task": "gsm8k"}, {"metric": "mbsu"}]
    others += [{"target": "c"}, {"spec": ""}, {"temperature": ""}]
    numbers = [row, *({**row, **other} for other in others)]
    found = iter_published_numbers(numbers, {("a", "b")}, task, temperature, "speedup")
    assert [each["value"] for each in found] == values


def test_every_number_without_a_value_says_why_it_is_lost_and_none_is_printed_twice():
    rows = [row for paper in PAPERS.values() for row in paper]
    lost = [row for row in rows if not row["value"]]
    assert Counter(row["reason"] for row in lost) == {"row_lost": 105, "order_unknown": 8}
    assert all(row["candidates"] for row in lost if row["reason"] == "order_unknown")
    for paper in PAPERS.values():
        keys = Counter((*(row[key] for key in KEYS), row["metric"]) for row in paper)
        assert {key: count for key, count in keys.items() if count > 1} == {}


# Of a paper's file: what is written for what, and what is said of it.
WRONG = {
    "a decimal comma": ("2.50", "2,50", "line 3: 21 cells"),
    "a short line": (",xsum,,sd,3", ",xsum", "line 3: 17 cells"),
    "one number twice": ("sd,4", "sd,3", "line 4: an earlier line .*'2.61'"),
    "a value that is lost": (
        "2.50,,,",
        "2.50,,row_lost,",
        "line 3: value must be .*'2.50', reason 'row_lost'",
    ),
    "no value, no reason": ("2.50", "", "line 3: value.* row_lost.* order_unknown .*value ''"),
    "another reason": ("2.50,,,", ",,lost,", "line 3: value.* row_lost.*reason 'lost'"),
    "no candidates": ("2.50,,,", ",,order_unknown,", "line 3: value.*candidates ''"),
    "no two candidates": ("2.50,,,", ",,order_unknown,1.0|x", "line 3: value.*candidates '1.0.x'"),
    "a number below all": ("2.50", "-2.50", "line 3: value .*'-2.50'"),
    "less than one token": (
        "2.50",
        "0.25",
        "line 3: value must be >= 1 .*'0.25', metric 'blo",
    ),
    "another decoder's tree": ("sd,3", "sd,2-2", "line 3: .*'sd'.*'2-2'.* draft length such as 3"),
    "no tree": ("sd,3", "sd,3y", "line 3: .*'sd'.*'3y'"),
    "no flag": (",1.0,,,,", ",1.0,,,yes,", "line 2: tree_attention .*true, false.*'yes'"),
    "no axis": (",3,,,1.0", ",3,depth,3,1.0", "line 3: axis.*draft_length or target_.*'depth'"),
    "an axis without a place": (",3,,,1.0", ",3,draft_length,,1.0", "line 3: axis .*axis_value ''"),
    "no temperature": (
        ",1.0,,,,",
        ",hot,,,,",
        "line 2: temperature must be .*; got .*'hot'; line 3: .*'hot'; l",
    ),
    "no table": ("\n1,", "\none,", "line 2: unknown table 'one'; known: 1, 2"),
    "a table of no paper": ("\n1,", "\n7,", "line 2: unknown table '7'; known: 1, 2"),
    "a twin of no paper": (",2,2.6", ",9,2.6", "line 2: unknown twin_table '9'; known: 1, 2"),
    "a twin without a number": (",2,2.6", ",2,", "line 2: twin_table .*twin_value ''"),
    "no metric": ("block_eff", "blok_eff", "line 3: unknown metric 'blok_eff.* block_efficiency"),
    "no task": (",xsum,,sd", ",xsumm,,sd", "line 3: unknown task 'xsumm'; did you mean xsum"),
    "a missing column": (",spec,", ",", "line 1: no column 'spec'"),
    "a spreadsheet's commas": (",", ";", "line 1: .*separated by ';'"),
    "Latin-1": ("Llama-3", "Ll\udce4ma-3", "line 3: it is no UTF-8; save it as UTF-8"),
}
LINES = """\
1,Llama,Llama-1,xsum,,rsd_c,2-2,,,1.0,,,,mbsu,2.4,,,,2,2.6
1,Llama,Llama-3,xsum,,sd,3,,,1.0,,,,block_efficiency,2.50,,,,,
1,Llama,Llama-3,xsum,,sd,4,,,1.0,,,,block_efficiency,2.61,,,,,
"""


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_printed_numbers_is_one_line_with_file_line_value_and_choices(case, tmp_path):
    file, text = tmp_path / FILE, f"{','.join(PRINTED)}\n{LINES}"
    file.write_text(text, encoding="utf-8")
    given = (("1", "2"), ("block_efficiency", "mbsu"))
    assert [row["value"] for row in read_published_numbers(file, *given)] == ["2.4", "2.50", "2.61"]
    old, new, said = WRONG[case]
    assert old in text
    read_published_numbers.cache_clear()
    broken = text.replace(old, new)
    file.write_bytes(broken.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=f"^'{re.escape(str(file))}', {said}"):
        read_published_numbers(file, *given)


def test_a_spreadsheets_marks_are_read_and_a_file_without_numbers_is_refused(tmp_path):
    file, text = tmp_path / FILE, f"{','.join(PRINTED)}\n{LINES}"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert [row["spec"] for row in read_published_numbers(file)] == ["2-2", "3", "4"]
    (tmp_path / "none").touch()
    with pytest.raises(ValueError, match=naming("none", "no numbers", "table,target")):
        read_published_numbers(tmp_path / "none")


def test_side_by_side_has_a_column_for_each_number_of_a_cell():
    empty = dict.fromkeys(PRINTED, "")
    rows = [
        {**empty, "table": "1", "decoder": "sd", "spec": spec, "metric": metric, "value": value}
        for spec, metric, value in (("2", "mbsu", "1.5"), ("2", "bleu", "0.3"), ("3", "mbsu", "2"))
    ]
    shown = [{k: v for k, v in cell.items() if v} for cell in pivot_numbers(rows)]
    assert shown == [
        {"table": "1", "decoder": "sd", "spec": "2", "mbsu": "1.5", "bleu": "0.3"},
        {"table": "1", "decoder": "sd", "spec": "3", "mbsu": "2"},
    ]
