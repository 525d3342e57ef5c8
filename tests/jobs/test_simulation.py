"""Random weights and stated acceptance from the command's settings to the results table."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from spec_bench.jobs.app import run_config
from spec_bench.jobs.config.cells import load_decoder
from spec_bench.jobs.config.compose import register
from spec_bench.jobs.config.config import check_settings
from spec_bench.jobs.config.settings import build_settings
from spec_bench.settings.configs import conf_dir
from tests.jobs.tiny import rows_of
from tests.said import naming

MODELS = (
    *("pair.target=random:llama_tiny", "pair.draft=random:llama_tiny"),
    *("sink=quiet", "engine.threads=1"),
)
PROMPTS = ("task=random", "task.prompt_tokens=8")


def composed(*overrides, task=PROMPTS):
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", overrides=[*MODELS, *task, *overrides])


def settings(*overrides):
    plain = OmegaConf.to_container(composed(*overrides), resolve=True)
    return build_settings(check_settings(plain), lambda name: load_decoder([conf_dir()], name))


def acceptances(*overrides):
    cells = settings(*overrides).cells
    return [cell.settings["verifier"].get("acceptance") for cell in cells]


@pytest.fixture
def run(tmp_path):
    return lambda *overrides: run_config(composed(f"results={tmp_path / 'results'}", *overrides))


def test_measured_acceptance_is_the_stated_one_and_the_rows_say_simulated(run, tmp_path):
    cells = "cells=[sd:3,spectr:2x2,rsd_c:2-1,rsd_s:2x2]"
    run("simulate=0.8", "prompts=4", cells, "generation.max_new_tokens=64")
    baseline, *rows = rows_of(tmp_path / "results")
    assert (baseline["lossless"], baseline["simulated_acceptance"]) == ("exact", "")
    assert float(baseline["block_efficiency"]) == 1
    for row in rows:
        assert row["pair"] == "random:llama_tiny+random:llama_tiny"
        assert (row["lossless"], row["simulated_acceptance"]) == ("simulated", "0.8")
        assert row["status"] == "complete"
        # About 200 trials a row: more than three standard deviations.
        assert float(row["acceptance_rate"]) == pytest.approx(0.8, abs=0.09)


def test_without_a_statement_random_models_decide_for_themselves(run, tmp_path):
    run("prompts=1", "decoder=sd", "spec=2", "generation.max_new_tokens=12")
    _, row = rows_of(tmp_path / "results")
    assert (row["lossless"], row["simulated_acceptance"]) == ("exact", "")


@pytest.mark.parametrize(("stated", "accepted"), [("[1.0,0.0,0.5]", 1), ("1", 3), ("0.0", 0)])
def test_each_depth_has_its_own_acceptance(run, stated, accepted):
    _, result = run(f"simulate={stated}", "prompts=1", "decoder=rsd_s", "spec=3x3")
    assert result.metrics["block_efficiency"] == accepted + 1


def test_the_acceptance_is_part_of_the_run_id_of_speculative_cells_only():
    ids = []
    for simulate in ("null", "0.7", "0.8", "[0.8,0.7,0.6]"):
        job = settings(f"simulate={simulate}")
        ids.append([job.run_id(cell) for cell in job.cells])
    baselines, cells = zip(*ids, strict=True)
    assert len(set(baselines)) == 1
    assert len(set(cells)) == 4


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("simulate=1.2", "a probability, a list of one per depth.* got 1.2"),
        ("simulate=-0.1", "got -0.1"),
        ("simulate=[0.8,hot,0.2]", "hot"),
        ("simulate=[0.8,0.7]", r"\[0.8, 0.7\] has 2 values, the tree has depth 3"),
        ("simulate=[]", r"got \[\]"),
        ("simulate=often", "simulate must be a probability, a list"),
        ("simulate={table: rsd/1}", "a probability, a list of one per depth or null, got .*rsd/1"),
    ],
)
def test_a_statement_that_cannot_be_is_one_line_that_names_it(wrong, named):
    with pytest.raises(ValueError, match=named) as caught:
        acceptances(wrong)
    assert "\n" not in str(caught.value)


def test_a_decoder_may_state_its_acceptance_itself():
    cell = "{decoder: rsd_c, spec: 2-2, verifier: {rule: simulated, acceptance: 0.4}}"
    with pytest.raises(ValueError, match=naming("verifier.replacement")):
        acceptances(f"cells=[{cell}]")
    fresh = [
        "~decoder.verifier.replacement",
        "decoder.verifier.rule=simulated",
        "+decoder.verifier.acceptance=0.4",
    ]
    assert acceptances(*fresh) == [None, 0.4]
    with pytest.raises(ValueError, match=naming("simulate", "null")):
        acceptances(*fresh, "simulate=0.5")


def test_a_task_of_texts_needs_a_tokenizer(tmp_path):
    config = composed(f"results={tmp_path}", "prompts=1", task=("task=xsum",))
    with pytest.raises(ValueError, match=naming("task=random")):
        run_config(config)
    assert not list(tmp_path.glob("*/results.csv"))
