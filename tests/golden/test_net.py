"""The net's own eyes: what it takes for a difference, and what for another processor's rounding."""

import pytest

from .net import differences

CELL = {
    "prompts": {"000000": "8b792ba608a5 6aa5a1e6dd5a"},
    "row": {
        "perplexity": 1.14637787,
        "block_efficiency": 3.43478261,
        "target_calls": 23.0,
        "acceptance_rate_by_depth": "[0.8695652173913043, 1.0]",
    },
}


def differing(part, key, value):
    changed = {**CELL, part: {**CELL[part], key: value}}
    return [line.partition(":")[0] for line in differences(CELL, changed)]


@pytest.mark.parametrize(("key", "value"), [("perplexity", 1.14637787 * (1 + 5e-7))])
def test_what_a_float32_pass_rounds_otherwise_is_no_difference(key, value):
    assert differing("row", key, value) == []


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("row", "perplexity", 1.147),
        ("row", "block_efficiency", 3.43478261 * (1 + 5e-7)),
        ("row", "target_calls", 24.0),
        ("row", "acceptance_rate_by_depth", "[0.8695652173913044, 1.0]"),
        ("prompts", "000000", "8b792ba608a5 83d575e99c9a"),
    ],
)
def test_counts_tokens_and_what_exceeds_rounding_are_differences(part, key, value):
    (where,) = differing(part, key, value)
    assert where.startswith(f".{part}.{key}")
