"""Every file in conf/task is a task, and what is wrong in one is said at build time."""

import pytest

from spec_bench.metrics import SCORES
from spec_bench.tasks import build_task

from .conftest import NAMES, config


def test_the_papers_eight_tasks_are_there():
    assert set(NAMES) >= {
        "alpaca",
        "dolly",
        "mt_bench",
        "spider",
        "squad",
        "wmt14_ende",
        "wmt18_deen",
        "xsum",
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_config_builds_under_its_own_name_with_scores_that_exist(name):
    task = build_task(config(name))
    assert task.name == name
    assert set(task.scores) <= set(SCORES)
    assert task.generation.max_new_tokens
    assert task.source.kind == "embedded"
    assert task.source.hub is not None
    assert task.source.hub.path.count("/") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"templat": "x"}, "task.templat; did you mean task.template?"),
        ({"template": None}, "task.template must be .* got None"),
        ({"template": "{open"}, "task.template: .*{open"),
        ({"chat": "yes"}, "task.chat must be one of auto, true, false, got 'yes'"),
        ({"source": {"kind": "hub", "url": "x"}}, "unknown setting task.source.url"),
        ({"source": {"kind": "hub", "hub": {"path": "a/b"}}}, "task.source.hub.split is missing"),
    ],
)
def test_a_mistake_in_a_config_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        build_task(config("xsum") | change)
