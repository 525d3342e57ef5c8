"""Every config composes, and says what the runner understands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from spec_bench.decode.build import spec_of, validate_decoder
from spec_bench.run.paths import EMBEDDED, config_dir, model_path
from spec_bench.tasks import build_task

CONF = config_dir()
CHOICES = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))
DECODERS = ["ar", "mcns", "mcsd", "mcsd_wor", "rsd_c", "rsd_s", "sd", "specinfer", "spectr"]


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


@pytest.mark.parametrize("path", CHOICES, ids=str)
def test_every_choice_of_every_group_composes(path: Path) -> None:
    config = composed(f"{path.parent}={path.stem}")
    assert OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


def test_the_nine_decoders_are_there() -> None:
    assert sorted(path.stem for path in CONF.glob("decoder/*.yaml")) == DECODERS


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_config_is_valid_and_bears_its_file_name(name: str) -> None:
    decoder = OmegaConf.to_container(composed(f"decoder={name}").decoder)
    assert isinstance(decoder, dict)
    assert decoder["name"] == name
    validate_decoder(decoder)
    assert spec_of(decoder)


@pytest.mark.parametrize("path", sorted(CONF.glob("task/*.yaml")), ids=lambda path: path.stem)
def test_a_task_config_is_valid_and_bears_its_file_name(path: Path) -> None:
    task = OmegaConf.to_container(composed(f"task={path.stem}").task)
    assert isinstance(task, dict)
    assert build_task(task).name == path.stem


@pytest.mark.parametrize("path", sorted(CONF.glob("pair/*.yaml")), ids=lambda path: path.stem)
def test_every_model_that_a_pair_embeds_is_in_the_package(path: Path) -> None:
    pair = composed(f"pair={path.stem}").pair
    drafts = pair.draft if OmegaConf.is_list(pair.draft) else [pair.draft]
    for name in (pair.target, *drafts):
        if str(name).startswith(EMBEDDED):
            assert Path(model_path(name)).is_dir()
