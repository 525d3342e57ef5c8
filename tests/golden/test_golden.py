"""The package prints, draws, names and decodes what it did: a part of the net, and all of it; and
what the net takes for a difference, and what for another processor's rounding.

A difference is looked at with ``python tests/golden/check.py KIND``.
"""

import pytest

from . import cells, figures, net
from .workspace import workspace

FIGURES = ("mcsd/3", "redrafter/6")  # check.py has all
JOBS = (
    "cells=[{decoder: mcsd, spec: 4-2-1, tree_attention: false},rsd_c:3-2-1]",
    "pair=vicuna_13b decoder=medusa task.source.kind=embedded",
    "dsbd=one_cache experiment=embedded prompts=100",
)


@pytest.fixture
def here():
    with workspace() as folder:
        yield folder


def assert_as_recorded(kind, found, names):
    wanted = {name: value for name, value in net.expected(kind).items() if name in names}
    assert len(wanted) == len(names)
    differing = net.differing(kind, wanted, found)
    assert differing == [], f"see python tests/golden/check.py {kind}"


def test_a_figure_shows_the_same_data_labels_and_limits(here):
    with figures.watched(here) as seen:
        for name in FIGURES:
            assert net.draw_figure(name) == ""
    assert_as_recorded("figures", seen, seen)
    assert len(seen) == len(FIGURES)


@pytest.mark.usefixtures("here")
def test_run_ids_are_the_same():
    assert_as_recorded("run_ids", cells.run_ids(JOBS), JOBS)


@pytest.mark.usefixtures("here")
def test_decoders_deliver_the_same_tokens_and_rows():
    found = cells.decoded(("ar", "sd", "rsd_s", "redrafter"), ("xsum",), (1,), ("1 static",))
    assert_as_recorded("tokens", found, found)
    assert len(found) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", net.KINDS)
def test_nothing_differs(kind):
    assert_as_recorded(kind, net.KINDS[kind](), net.expected(kind))


CELL = {
    "prompts": {"000000": "8b792ba608a5 6aa5a1e6dd5a"},
    "row": {
        "perplexity": 1.14637787,
        "block_efficiency": 3.43478261,
        "target_calls": 23.0,
        "acceptance_rate_by_depth": "[0.8695652173913043, 1.0]",
    },
}


@pytest.mark.parametrize(
    ("part", "key", "value", "count"),
    [
        ("row", "perplexity", 1.14637787 * (1 + 5e-7), 0),  # a float32 pass rounds otherwise
        ("row", "perplexity", 1.147, 1),
        ("row", "block_efficiency", 3.43478261 * (1 + 5e-7), 1),
        ("row", "target_calls", 24.0, 1),
        ("row", "acceptance_rate_by_depth", "[0.8695652173913044, 1.0]", 1),
        ("prompts", "000000", "8b792ba608a5 83d575e99c9a", 1),
    ],
)
def test_counts_tokens_and_what_exceeds_rounding_are_differences(part, key, value, count):
    changed = {**CELL, part: {**CELL[part], key: value}}
    found = [line.partition(":")[0] for line in net.differences(CELL, changed)]
    assert len(found) == count and all(where.startswith(f".{part}.{key}") for where in found)
