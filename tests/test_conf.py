"""Every config composes, and says what the runner understands."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape
from spec_bench.jobs.config.cells import build_unique_cells, parse_cells
from spec_bench.jobs.config.compose import LISTS, read_chosen_tree_lists, register_config_plugins
from spec_bench.jobs.config.model_files import EMBEDDED_PREFIX, resolve_or_convert_model
from spec_bench.report.claims.ask import ClaimQuery
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.papers.items import read_recipe, read_recipe_folder
from spec_bench.report.papers.pairs import format_parameter_count
from spec_bench.report.papers.paper import list_paper_names, load_paper
from spec_bench.settings.configs import get_conf_dir, get_experiments_dir
from spec_bench.tasks import build_task
from spec_bench.vocabulary.published import FILE, pivot_numbers, read_published_numbers
from tests.families import decoder_names

CONF = get_conf_dir()
# Groups whose choices are composed in tests of their own, and what ``serve`` starts, no group.
ALONE = {"decoder", "pair", "task"}
CHOICES = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))
TRAINING = {"head", "training"}  # groups of conf/train.yaml


def resolved(config):
    """All of it as plain values, none missing."""
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


@cache
def composed(*overrides, config="config"):
    register_config_plugins()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(config, overrides=list(overrides))


@pytest.mark.parametrize(
    "path", [path for path in CHOICES if str(path.parent) not in ALONE], ids=str
)
def test_every_choice_of_every_group_composes(path):
    application = "train" if str(path.parent) in TRAINING else "config"
    assert resolved(composed(f"{path.parent}='{path.stem}'", config=application))


def mostly_slow(values, ids=str):
    """Cases: a fifth of them are quick."""
    return [
        pytest.param(each, id=ids(each), marks=[pytest.mark.slow] if number % 5 else [])
        for number, each in enumerate(values)
    ]


@pytest.mark.parametrize("name", mostly_slow(decoder_names()))
def test_a_decoder_config_is_valid_and_bears_its_file_name(name):
    decoder = resolved(composed(f"decoder='{name}'"))["decoder"]
    assert decoder["name"] == name and read_decoder(decoder).spec


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("task/*.yaml")))
def test_a_task_config_is_valid_and_bears_its_file_name(name):
    assert build_task(resolved(composed(f"task={name}"))["task"]).name == name


def test_spec_benchs_experiment_asks_all_of_its_questions_greedily():
    config = composed("experiment=spec_bench")
    asked = config.task.name, config.prompts, config.generation.temperature
    assert asked == ("spec_bench", None, 0.0)
    assert len(config.cells) > 3


PAIRS = mostly_slow(sorted(CONF.glob("pair/*.yaml")), lambda path: path.stem)


@pytest.mark.parametrize("path", PAIRS)
def test_a_pair_is_in_the_package_or_takes_public_data(path):
    config = resolved(composed(f"pair='{path.stem}'"))
    target, draft = config["pair"]["target"], config["pair"]["draft"]
    for name in (target, *(draft if isinstance(draft, list) else [draft])):
        assert (
            not str(name).startswith(EMBEDDED_PREFIX)
            or Path(resolve_or_convert_model(name)).is_dir()
        )
    kind = "embedded" if path.stem.startswith("embedded") else "hub"
    assert config["task"]["source"]["kind"] == kind


RECIPES = sorted(
    path
    for path in get_experiments_dir().glob("*/*.yaml")
    if path.read_text().startswith("# @package _global_")
)


def cells_of(recipe):
    config = OmegaConf.to_container(composed(recipe), resolve=True)
    assert config["name"] == recipe.replace("=", "-").replace("_", "-")
    lists = (
        read_chosen_tree_lists({group: config[group] for group in LISTS}, [CONF]) | config["trees"]
    )
    wanted = [cell for cells in (config["cells"], *lists.values()) for cell in cells]
    cells = parse_cells(config["decoder"], config["spec"], wanted, [CONF])
    return list(build_unique_cells(cells, SamplingSettings(temperature=1.0)))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_says_its_log_and_meter_and_composes_into_valid_cells(path):
    assert {"sink=wandb", "energy=none"} <= {*re.findall(r"\w+=\w+", path.read_text())}
    names = [cell.name for cell in cells_of(f"{path.parent.name}={path.stem}")]
    assert len(names) > 1 and not any(" " in name for name in names)  # reports look for the plain


@pytest.mark.parametrize(
    ("recipe", "tables"), [("rsd=exp1", range(1, 28)), ("rsd=exp2", range(28, 55))]
)
def test_a_recipe_has_the_rows_of_each_of_its_published_tables(recipe, tables):
    cells = [(cell.name, cell.config.spec) for cell in cells_of(recipe)]
    published = pivot_numbers(read_published_numbers(get_experiments_dir() / "rsd" / FILE))
    for table in tables:
        rows = [(row["decoder"], row["spec"]) for row in published if int(row["table"]) == table]
        assert cells == rows


def test_search_has_every_printed_configuration_and_the_monotone_one_its_non_increasing_part():
    both = (cells_of(f"mcsd={name}") for name in ("search", "search_monotone"))
    every, fewer = ([(cell.name, cell.config.spec) for cell in cells] for cells in both)
    full, pruned = ([s for name, s in each if name == "mcsd_wor"] for each in (every, fewer))
    falling = [s for s in full if (k := list(map(int, s.split("-")))) == sorted(k, reverse=True)]
    assert pruned == falling
    assert len(set(full)) == len(full) == 6 + 21 + 56 + 126 + 252
    rows = read_published_numbers(get_experiments_dir() / "mcsd" / FILE)
    rows = [row for row in rows if row["table"] in "2356" and row["decoder"] != "ar"]
    printed = {(row["decoder"], row["spec"]) for row in rows}
    assert len(printed) > 20
    assert printed <= {*every}


def test_figure_6s_cells_draft_with_heads_alone():
    parts = {(cell.config.heads, cell.config.drafts) for cell in cells_of("redrafter=batches")}
    assert parts == {(None, 0), ("redrafter", 0)}


@pytest.mark.parametrize(
    ("pair", "hidden", "blocks"), [("vicuna_7b", 4096, 4), ("vicuna_13b", 5120, 5)]
)
def test_trained_heads_are_where_their_pair_looks_for_them_and_of_the_size_in_table_1(
    pair, hidden, blocks
):
    given = ("training=redrafter", f"pair={pair}", f"head.blocks={blocks}")
    training, config = composed(*given, config="train"), composed(f"pair={pair}").pair
    assert f"{training.results}/{training.name}/heads" == config.heads.redrafter
    assert training.head.name == "redrafter"
    wanted = config.paper.target, "drafter_size", "redrafter"
    printed = {
        row["value"]
        for row in read_published_numbers(get_experiments_dir() / "redrafter" / FILE)
        if (row["target"], row["metric"], row["decoder"]) == wanted
    }
    with torch.device("meta"):
        head = RecurrentHead(RecurrentShape(hidden, 32000, blocks))
    assert {format_parameter_count(sum(each.numel() for each in head.parameters()))} == printed


def test_the_paper_that_prints_plus_minus_is_measured_with_several_seeds():
    for paper in map(load_paper, list_paper_names()):
        for item in paper.tables:
            hydra = [read_recipe(each).get("hydra", {}) for each in item.recipes]
            params = [each.get("sweeper", {}).get("params", {}) for each in hydra]
            seeds = {str(each.get("seed", "0")) for each in params}
            printed = any(row["plus_minus"] for row in paper.get_numbers_or_places(item.number))
            assert (seeds == {"0,1,2"}) == printed, item.name


@pytest.mark.parametrize(
    ("pair", "tree"),
    [
        *(("llama_13b_68m", "4-2-2"), ("vicuna_13b_68m", "16-1"), ("llama_33b_68m", "8-2-1-1")),
        *(("vicuna_33b_68m", "16-1-1"), ("opt_13b", "4-2-1"), ("embedded", "4-2-1")),
    ],
)
def test_the_ablation_takes_each_pair_at_its_best_tree(pair, tree):
    """As MCSD's Table 4 does, by its Tables 2 and 5; any other pair at one tree of ours."""
    told = ("mcsd=ablation", f"pair={pair}", "task=alpaca")
    assert {cell["spec"] for cell in composed(*told).cells} == {tree}
    assert composed(*told, "generation.temperature=null").cells[0]["spec"] == tree


@pytest.mark.parametrize(
    ("told", "kind", "path"),
    [
        ("pair.target=my/folder pair.draft=my/draft", "hub", None),
        ("pair.target=random:llama_tiny", "embedded", None),
        ("pair=opt_13b task.source.kind=embedded", "embedded", None),
        ("task.source.kind=hub", "hub", None),
        ("pair=opt_13b task=random", "random", None),
        ("pair=opt_13b task=jsonl", "local", None),
        # Spec-Bench's questions: the file that is named, else the embedded pair's own.
        ("task=spec_bench", "embedded", None),
        ("task=spec_bench task.source.path=mine.jsonl", "local", "mine.jsonl"),
        ("task=spec_bench pair=opt_13b", "local", None),
        ("task=spec_bench eagle=spec_bench", "embedded", None),
        ("task=spec_bench eagle=spec_bench pair=vicuna_7b", "local", "question.jsonl"),
        ("task=spec_bench eagle=spec_bench task.source.path=mine.jsonl", "local", "mine.jsonl"),
    ],
)
def test_a_pair_takes_the_data_of_its_size_unless_told(told, kind, path):
    source = composed(*told.split()).task.source
    assert (source.kind, source.get("path") if "spec_bench" in told else None) == (kind, path)


def test_what_is_compared_over_rounds_is_swept_round_by_round(monkeypatch):
    asked = []
    of = ClaimQuery.of

    def watched(ask, *experiments, rounds=False, **how):
        asked.extend(experiments if rounds else ())
        return of(ask, *experiments, rounds=rounds, **how)

    monkeypatch.setattr(ClaimQuery, "of", watched)
    ask = ClaimQuery(pd.DataFrame(columns=["experiment", "prompts"]), RecordReader(Path("none")))
    for paper in map(load_paper, list_paper_names()):
        recipes = {read_recipe_folder(each): each for item in paper.items for each in item.recipes}
        for claim in paper.claims:
            list(claim.function(replace(ask, axes=paper.trees_by_axis)))
        for name in {name for name in asked if name in recipes}:
            params = read_recipe(recipes[name])["hydra"]["sweeper"]["params"]
            assert next(iter(params)) == "seed"  # the first varies slowest
            assert len(params["seed"].split(",")) >= 2
    assert asked
