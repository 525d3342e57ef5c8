"""A training's settings: what cannot be right is said in one line before anything is loaded."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from spec_bench.jobs.config.compose import register
from spec_bench.settings.configs import conf_dir
from spec_bench.train.settings import build_train_settings


def settings(*overrides):
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", overrides=list(overrides))
    plain = OmegaConf.to_container(config, resolve=True)
    return build_train_settings(plain)


@pytest.mark.parametrize("head", ["medusa", "redrafter", "redrafter_no_rnn"])
def test_every_head_can_be_trained_on_chats_and_on_a_task(head):
    assert settings(f"head={head}", "data.path=chats.json").asked.head.guesses == 5
    assert settings(f"head={head}", "data.kind=task").task is not None


def test_the_heads_lie_beside_the_log_unless_another_folder_is_named():
    made = settings("data.kind=task", "name=grid/a")
    assert made.out == Path("results/train/grid/a/heads")
    assert settings("data.kind=task", "out=elsewhere").out == Path("elsewhere")


def test_what_the_numbers_do_not_follow_from_is_no_part_of_a_checkpoint():
    one = settings("data.kind=task", "name=a", "log_every=5", "sink=quiet")
    assert one.config == settings("data.kind=task", "name=b").config
    assert one.config != settings("data.kind=task", "seed=1").config
    assert one.config != settings("data.kind=task", "task=dolly").config


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ([], "data.kind=chats needs data.path, the file"),
        (["data.kind=books"], "must be one of chats, prompts, sampled, task, got 'books'"),
        (["data.kind=task", "data.answered_by=file"], "data.kind=task has no answers"),
        (["data.kind=task", "head.guesses=0"], "head.guesses must be a whole number >= 1, got 0"),
        (["data.kind=task", "head.decay=1.5"], "head.decay must be a number from 0 to 1, got 1.5"),
        (["data.kind=task", "+head.layers=2"], "unknown setting head.layers; head has blocks"),
        (
            ["data.kind=task", "head=redrafter", "head.init=target"],
            "head.init=target: the last layer of redrafter",
        ),
        (["data.kind=task", "data.validation=1"], "data.validation must be a number from 0 to 0.9"),
        (
            ["data.kind=task", "data.answers.temperatures=[]"],
            "data.answers.temperatures must be a number >= 0 or a list",
        ),
        (["data.kind=task", "optimiser.steps=none"], "whole number >= 1 or null, got 'none'"),
        (["data.kind=task", "optimiser.precision=half"], "one of float32, bfloat16, got 'half'"),
        (["data.kind=task", "optimiser.accumulate=65"], "splits a batch of 64 dialogues"),
        (["data.kind=task", "validate_every=30"], "validate_every must be a multiple of log_every"),
        (["data.kind=task", "name=../x"], "name must be a folder below results, got '../x'"),
        (["data.kind=task", "name=cache/x"], "name 'cache' is taken"),
        (["data.kind=task", "pair.target=embedded:none"], "unknown embedded model"),
        (["data.kind=task", "data.path=x.jsonl"], "data.kind=task reads no file, got data.path=x"),
        (["data.kind=task", "out_dtype=int8"], "out_dtype must be one of float32, float16"),
    ],
)
def test_a_value_that_cannot_be_is_named(overrides, complaint):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is checked below
        settings(*overrides)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)
