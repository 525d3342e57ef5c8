"""Prompts of random token ids: stated length, reproducible, and the runner's interface."""

import pytest

from spec_bench.tasks import RandomPrompts, build_task
from tests.said import naming

from .conftest import config

EIGHT = range(8)  # len() is all that is asked of a tokenizer


def task(**changes):
    built = build_task({**config("random"), **changes})
    assert isinstance(built, RandomPrompts)
    return built


def test_every_prompt_has_the_stated_length_and_ids_of_the_vocabulary():
    asked = task(prompt_tokens=50, prompts=3).examples()
    prompts = [task(prompt_tokens=50).encode(example, EIGHT) for example in asked]
    assert [len(prompt) for prompt in prompts] == [50, 50, 50]
    assert set(sum(prompts, ())) == set(EIGHT)


def test_a_prompt_depends_on_seed_and_number_alone():
    def prompts(seed, **options):
        drawn = task(seed=seed)
        return [drawn.encode(example, EIGHT) for example in drawn.examples(**options)]

    assert prompts(0, limit=3) == prompts(0)[:3]
    assert prompts(0, limit=2, offset=4) == prompts(0)[4:6]
    assert len({*prompts(0), *prompts(1)}) == 2 * 64


def test_there_is_nothing_to_score_and_nothing_to_stop_at():
    drawn = task()
    (example,) = drawn.examples(limit=1)
    assert drawn.scores == drawn.stop_ids(EIGHT) == ()
    assert drawn.references(example) == []
    assert drawn.postprocess(" 3 1 ") == " 3 1 "
    assert drawn.generation.max_new_tokens == 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": 0}, "task.prompt_tokens must be a whole number >= 1, got 0"),
        ({"prompts": True}, "task.prompts must be a whole number"),
        ({"template": "x"}, "unknown setting task.template; task has"),
        ({"source": {"kind": "random", "path": "x"}}, "unknown setting task.source.path"),
    ],
)
def test_a_mistake_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        task(**change)


def test_no_prompt_beyond_the_last():
    with pytest.raises(ValueError, match=naming("64 prompts", "from 64")):
        task().examples(offset=64)
