"""The run id changes with the numbers and with nothing else."""

from pathlib import Path

import pytest
from huggingface_hub import constants, file_download
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from spec_bench.jobs.config import pair, settings
from spec_bench.jobs.config.cells import load_decoder
from spec_bench.jobs.config.config import check_settings
from spec_bench.jobs.config.model_files import hub_commit
from spec_bench.jobs.config.pair import EngineSettings, PairSettings
from spec_bench.jobs.config.settings import build_settings, job_id
from spec_bench.records.types import ENGINE
from spec_bench.settings.configs import conf_dir
from spec_bench.tree.widths import IidPaths
from tests.jobs.tiny import make_family, make_task, overrides


def job_of(family, *more):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=overrides(family, Path("results"), *more))
    plain = OmegaConf.to_container(config, resolve=True)
    return build_settings(check_settings(plain), lambda name: load_decoder([conf_dir()], name))


def ids(family, *more):
    job = job_of(family, *more)
    return [job.run_id(cell) for cell in job.cells]


@pytest.mark.parametrize(("asked", "said"), [("null", None), ("0.5", 0.5), ("1.0", None)])
def test_a_row_says_the_drafts_temperature_where_it_is_not_the_targets(family, asked, said):
    told = ("generation.temperature=1", f"generation.draft_temperature={asked}")
    job = job_of(family, *told)
    assert [job.facts(cell).draft_temperature for cell in job.cells] == [said] * len(job.cells)


@pytest.mark.parametrize(
    "override", ["name=other", "results=elsewhere", "sink=default", "pair.name=label"]
)
def test_output_settings_leave_the_run_id_alone(family, override):
    assert ids(family, override) == ids(family)


@pytest.mark.parametrize(
    "override",
    [
        *("seed=1", "prompts=3", "generation.temperature=0.5", "generation.top_p=0.9", "warmup=2"),
        *("generation.max_new_tokens=13", "engine.batch_size=2", "engine.dtype=bfloat16"),
        "pair.draft=FAMILY/target",
    ],
)
def test_settings_that_change_the_numbers_change_every_run_id(family, override):
    asked = override.replace("FAMILY", str(family))
    assert not set(ids(family, asked)) & set(ids(family))


def test_the_tree_changes_its_own_cell_only(family):
    narrow, wide = ids(family, "spec=2x3"), ids(family, "decoder.tree.width=4")
    assert narrow[0] == wide[0]
    assert narrow[1] != wide[1]


@pytest.mark.parametrize(
    ("file", "was", "now"),
    [("draft/model.safetensors", b"", b"\x01"), ("rows.jsonl", b"harbour", b"airport")],
)
def test_other_weights_or_rows_in_the_same_place_are_another_cell(tmp_path, file, was, now):
    make_family(tmp_path)
    make_task(tmp_path)
    before, path = ids(tmp_path), tmp_path / file
    data = path.read_bytes()
    path.write_bytes(data.replace(was, now) if was else data[:-1] + now)
    assert not set(before) & set(ids(tmp_path))


def test_a_job_is_the_set_of_its_cells():
    assert job_id(["a", "b"]) == job_id(["b", "a"]) != job_id(["a"])


def test_another_engine_is_another_cell(family, monkeypatch):
    before = ids(family)
    monkeypatch.setattr(settings, "ENGINE", ENGINE + 1)
    assert not set(before) & set(ids(family))


def test_a_policy_that_draws_other_trees_makes_other_cells_of_those_alone(family, monkeypatch):
    asked = "cells=[traversal_paths:2x2,spectr:2x2,rsd_c:2-2]"
    now = job_of(family, asked)
    assert [now.facts(cell).tree_revision for cell in now.cells] == ["", "1", "", ""]
    revised = ids(family, asked)
    monkeypatch.setattr(IidPaths, "revision", 0)
    never = ids(family, asked)
    changed = [one != other for one, other in zip(revised, never, strict=True)]
    assert changed == [False, True, False, False]


def test_a_moved_branch_of_the_hub_is_another_cell(monkeypatch):
    """What is loaded is pinned to the commit that the run id is made with."""
    hub = {}
    monkeypatch.setattr(pair, "hub_commit", lambda name, *_: hub.get(name))
    asked = PairSettings("org/target", "org/draft", heads={"medusa": "org/heads"})
    unknown = pair.build_pair(asked, EngineSettings("cpu", "float32"))
    assert pair.pinned(unknown).revisions == (None, None)
    hub.update({"org/target": "a" * 40, "org/draft": "b" * 40, "org/heads": "c" * 40})
    known = pair.pinned(unknown, ["medusa"])
    assert [spec.revision for spec in known.specs] == ["a" * 40, "b" * 40] == [*known.revisions]
    assert known.heads_settings("medusa")["revision"] == "c" * 40
    assert known.settings() != unknown.settings()


def test_a_repository_in_the_hubs_cache_tells_its_commit(tmp_path, monkeypatch):
    folder, commit = tmp_path / "models--org--tiny", "0123456789abcdef" * 2 + "01234567"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(file_download.constants, "HF_HUB_CACHE", str(tmp_path))
    assert hub_commit("org/tiny", fetch=False) == commit
    assert hub_commit("org/other", fetch=False) is None
    assert hub_commit("embedded:target") is None
