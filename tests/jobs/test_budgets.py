"""``budget`` and ``length`` choose lists of trees by a number."""

import re

import pytest
import yaml

from spec_bench.jobs.config.compose import with_quoted_numbers
from spec_bench.settings.configs import conf_dir
from spec_bench.vocabulary.spec import parse
from tests import warm


def said(folder, *words):
    status, out, error = warm.run("spec_bench", *words, folder=folder)
    assert status == 0, error
    return out


def listed(folder, *words):
    config = yaml.safe_load(said(folder, *words, "--cfg", "job"))
    return [cell for cells in config["trees"].values() for cell in cells]


@pytest.mark.parametrize(
    ("group", "size", "number", "least"),
    [
        *(("budget", "nodes", nodes, 8) for nodes in (6, 10, 14, 21, 30)),
        *(("length", "depth", depth, 1) for depth in (2, 3, 4, 5)),
    ],
)
def test_every_tree_of_a_budget_or_length_has_just_that_size(group, size, number, least):
    file = yaml.safe_load((conf_dir() / group / f"{number}.yaml").read_text())
    (cells,) = file["trees"].values()
    assert len(set(cells)) == len(cells) >= least
    assert {getattr(parse(cell.partition(":")[2]), size) for cell in cells} == {number}


def test_numbers_are_quoted_and_other_arguments_stay():
    told = ["budget=6", "budget=6,14", "+budget=[6,'14']", "length=3", "seed=3", "budget=mine"]
    assert with_quoted_numbers(told) == [
        *("budget='6'", "budget='6','14'", "+budget=['6','14']", "length='3'", *told[4:])
    ]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "budget=[6,7]",
            "budget must be one of 6, 10, 14, 21, 30; other trees are named by "
            "cells=[sd:7,rsd_c:2-2-1], got 7",
        ),
        ("length=6", "length must be one of 2, 3, 4, 5, got 6"),
        ("budget=-3", "budget must be a whole number or a list such as [6,14], got '-3'"),
        ("budget=2.5", "budget must be a whole number or a list such as [6,14], got '2.5'"),
        ("budget=[null,6]", "budget must be a whole number or a list such as [6,14], got 'null'"),
    ],
)
def test_a_budget_that_there_is_not_is_refused_by_name(word, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        with_quoted_numbers([word])


def test_the_composed_config_shows_the_cells_of_each_budget_in_the_order_asked(tmp_path):
    both = listed(tmp_path, "budget=[14,6]")
    assert both == [*listed(tmp_path, "budget=14"), *listed(tmp_path, "budget=6")]


def test_budget_and_length_add_to_the_cells_that_are_asked_for_each_cell_once(tmp_path):
    plan = said(tmp_path, "budget=6", "length=2", "cells=[mcsd:3-2]", "plan=true", "prompts=1")
    specs = {tuple(line.split()[2:4]) for line in plan.splitlines() if " xsum " in line}
    assert {("mcsd", "3-2"), ("sd", "2"), ("sd", "6"), ("spectr", "3x2"), ("ar", "-")} <= specs
    assert f"{len(specs)} cells" in plan
    assert len(specs) == 14  # the baseline, 1, 8 and 8, four of which are both


@pytest.mark.parametrize("group", ["budget", "length", "today", "experiment"])
def test_a_group_may_be_set_to_the_null_that_is_its_default(group, tmp_path):
    assert listed(tmp_path, f"{group}=null") == listed(tmp_path)


def test_a_budget_of_null_takes_back_a_recipes_and_is_one_of_a_sweep(tmp_path):
    assert len(listed(tmp_path, "rsd=exp2", "budget=null")) < len(listed(tmp_path, "rsd=exp2"))
    swept = said(tmp_path, "-m", "budget=null,6", "plan=true", "prompts=1")
    assert "10 cells" in swept  # two as by default, eight as with budget=6


def test_a_sweep_over_budgets_is_a_job_for_each(tmp_path):
    assert "17 cells" in said(tmp_path, "-m", "budget=6,14", "plan=true", "prompts=1")
