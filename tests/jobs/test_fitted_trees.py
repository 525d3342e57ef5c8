"""Sequoia's tree is the one that was fitted to the pair, or none."""

from dataclasses import replace

import pytest
import yaml

from spec_bench import load_pair
from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import Cell, load_decoder
from spec_bench.jobs.config.fitting import Fit, FittedTrees, read_fit
from spec_bench.jobs.config.pair import Pair
from spec_bench.recommend.fit_tree import main as fit_tree
from spec_bench.settings.configs import conf_dirs
from tests.jobs.test_command_line import main
from tests.jobs.tiny import overrides, rows_of
from tests.said import naming

PAIR = Pair("mine", "a/target", ("a/draft",), (), (None, None))
FIT = Fit(
    **{"pair": "mine", "target": "a/target", "draft": "a/draft", "revisions": ("", "")},
    **{"task": "dolly", "temperature": 1.0, "top_k": 0, "top_p": 0.95, "draft_temperature": None},
    **{"prompts": 1, "iterations": 10, "accepted": (0.8, 0.1)},
)
SAMPLING = SamplingSettings(top_p=0.95)


def sequoia(total):
    decoder = load_decoder(conf_dirs(), "sequoia")
    return Cell.read({**decoder, "tree": {"policy": "fitted_list", "total": total}}, SAMPLING)


def test_the_tree_follows_from_the_acceptances_of_the_fit(tmp_path):
    FIT.write(tmp_path / "trees")
    trees = FittedTrees(PAIR, "dolly", SAMPLING, tmp_path)
    # 0.8, 0.64, 0.512, 0.4096; a second child below the root is worth 0.1 only.
    assert trees.given(sequoia(3)).settings["tree"]["nodes"] == [[0], [0, 0], [0, 0, 0]]
    deep = trees.given(sequoia(14)).settings["tree"]["nodes"]
    assert (len(deep), max(map(len, deep)), [1] in deep) == (14, 11, True)


@pytest.mark.parametrize(
    "other",
    [
        {"pair": replace(PAIR, target="another")},
        {"pair": replace(PAIR, drafts=("another",))},
        {"pair": replace(PAIR, revisions=("f00", None))},
        {"task": "xsum"},
        {"sampling": SamplingSettings(0.3, top_p=0.95)},
        {"sampling": SamplingSettings()},
    ],
)
def test_a_fit_is_for_its_models_task_and_sampling_alone(other, tmp_path):
    replace(FIT, revisions=("cafe", "")).write(tmp_path / "trees")
    told = {"pair": PAIR, "task": "dolly", "sampling": SAMPLING, "results": tmp_path}
    assert FittedTrees(**told).given(sequoia(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=naming("sequoia @3", "fit_tree", "pair.target=")):
        FittedTrees(**{**told, **other}).given(sequoia(3))  # type: ignore[arg-type]


def test_another_pair_is_refused_before_it_is_loaded_with_the_command_that_fits(
    monkeypatch, capsys, tmp_path
):
    words = ["pair=llama2_7b", "task.source.kind=embedded", f"results={tmp_path}"]
    assert main(monkeypatch, *words, "decoder=sequoia", "task=dolly") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "spec-bench fit_tree pair=llama2_7b task=dolly" in said
    told = [*words, "cells=[sd:2,sequoia:@14]", "plan=true", "hydra/job_logging=none"]
    assert main(monkeypatch, *told) == 0  # the others run, as without a pair's heads
    assert "sequoia" not in capsys.readouterr().out


def test_a_tree_is_no_other_decoders(monkeypatch, capsys):
    assert main(monkeypatch, "decoder=sequoia", "spec=eagle_25") == 2
    assert "'eagle_25'" in capsys.readouterr().err
    assert main(monkeypatch, "cells=[{decoder: sequoia, drafter: eagle3}]") == 2
    assert "fitted_list" in capsys.readouterr().err


def test_what_the_command_measures_the_next_job_decodes_with(run_job, family, tmp_path, capsys):
    results = tmp_path / "results"
    told = overrides(family, results, "prompts=2", "width=3", "nodes=4")
    assert fit_tree([*told, "hydra/job_logging=none"]) == 0
    assert "sequoia:@4" in capsys.readouterr().out
    (path,) = (results / "trees").glob("*.yaml")
    fit = read_fit(path)
    assert (fit.task, fit.prompts, len(fit.accepted)) == ("xsum", 2, 3)
    assert fit.iterations >= 2 and 0 <= sum(fit.accepted) <= 1
    run_job("cells=[sequoia:@4]", "prompts=2")
    (row,) = (row for row in rows_of(results) if row["decoder"] == "sequoia")
    assert (row["spec"], row["status"], float(row["nodes_per_call"])) == ("@4", "complete", 4.0)
    config = yaml.safe_load((results / "runs" / row["run_id"] / "config.yaml").read_text())
    assert len(config["decoder"]["tree"]["nodes"]) == 4  # so that a new fit is another cell


def test_from_python_too_a_tree_is_the_pairs_own():
    pair = load_pair(target="embedded:target", draft="embedded:draft")
    with pytest.raises(ValueError, match="fit_tree"):
        pair.decode("Summary:", "sequoia:@4")


@pytest.mark.parametrize("wrong", ["width=wide", "nodes=0", "nodes="])
def test_the_commands_own_numbers_are_checked(wrong, capsys):
    assert fit_tree([wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
