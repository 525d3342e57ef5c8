"""The run id changes with the numbers and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from spec_bench.configs import conf_dir
from spec_bench.run.cells import load_decoder
from spec_bench.run.settings import build_settings, check_settings
from spec_bench.run.store import job_id, run_id
from tests.run.tiny import make_family, make_task, overrides


def ids(family: Path, *more: str) -> list[str]:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=overrides(family, Path("results"), *more))
    plain = OmegaConf.to_container(config, resolve=True)
    settings = build_settings(check_settings(plain), lambda name: load_decoder([conf_dir()], name))
    return [run_id(settings.cell_settings(cell)) for cell in settings.cells]


@pytest.mark.parametrize(
    "override", ["name=other", "results=elsewhere", "sink=default", "pair.name=label"]
)
def test_output_settings_leave_the_run_id_alone(family: Path, override: str) -> None:
    assert ids(family, override) == ids(family)


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "prompts=3",
        "generation.temperature=0.5",
        "generation.top_p=0.9",
        "generation.max_new_tokens=13",
        "engine.batch_size=2",
        "engine.dtype=bfloat16",
        "pair=embedded_plain",
        "warmup=2",
    ],
)
def test_settings_that_change_the_numbers_change_every_run_id(family: Path, override: str) -> None:
    if override == "pair=embedded_plain":
        override = f"pair.draft={family / 'target'}"
    assert not set(ids(family, override)) & set(ids(family))


def test_the_tree_changes_its_own_cell_only(family: Path) -> None:
    narrow, wide = ids(family, "spec=2x3"), ids(family, "decoder.tree.width=4")
    assert narrow[0] == wide[0]
    assert narrow[1] != wide[1]


def test_other_weights_in_the_same_folder_are_another_cell(tmp_path: Path) -> None:
    make_family(tmp_path)
    make_task(tmp_path)
    before = ids(tmp_path)
    weights = tmp_path / "draft" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert not set(before) & set(ids(tmp_path))


def test_a_job_is_the_set_of_its_cells() -> None:
    assert job_id(["a", "b"]) == job_id(["b", "a"]) != job_id(["a"])
