"""Plain decoding's scores beside the printed ones: which are of the pair, and which lie outside."""

import pytest

from spec_bench.metrics.plain import (
    find_published_baseline_scores,
    iter_published_baseline_comparisons,
)

ROW = {
    **{"decoder": "ar", "pair": "llama2_7b", "task": "xsum", "temperature": 0.3, "prompts": 12},
    **{"delivered_tokens": 372, "prompt_length": 411.6},
    **{"rouge2": 0.11, "rouge2_low": 0.09, "rouge2_high": 0.13},
}
OTHERS = "other prompts or another model"


@pytest.mark.parametrize(
    ("pair", "task", "temperature", "printed"),
    [
        ("llama2_7b", "xsum", 0.3, {"rouge2": 0.141}),
        ("opt_13b", "wmt18_deen", 0.3, {"bleu": 0.318}),
        ("opt_13b_350m", "wmt18_deen", 0.3, {"bleu": 0.316}),
        ("llama2_13b_68m", "squad", 1.0, {"exact_match": 74}),
        ("opt_13b", "spider", 1.0, {"execution_accuracy": 0.0}),
        ("llama2_7b", "xsum", 0.0, {}),
        ("llama2_7b", "dolly", 0.3, {}),
        ("embedded", "xsum", 0.3, {}),
        ("of no config", "xsum", 0.3, {}),
    ],
)
def test_what_is_printed_of_plain_decoding_is_that_of_the_papers_own_pair(
    pair, task, temperature, printed
):
    row = {"decoder": "ar", "pair": pair, "task": task, "temperature": temperature}
    assert (
        find_published_baseline_scores(row)
        == find_published_baseline_scores({**row, "temperature": f"{temperature:g}"})
        == printed
    )
    assert find_published_baseline_scores({**row, "decoder": "sd"}) == {}


@pytest.mark.parametrize(
    ("low", "score", "high", "says"),
    [
        (0.09, 0.11, 0.13, True),  # 99%: 0.082 to 0.138
        (0.095, 0.115, 0.135, False),  # outside of the 95% interval, inside of the 99% one
        (0.15, 0.17, 0.19, True),
        (0.0, 0.0, 0.0, True),
    ],
)
def test_a_printed_score_outside_of_the_99_percent_interval_is_of_other_prompts(
    low, score, high, says
):
    row = ROW | {"rouge2": score, "rouge2_low": low, "rouge2_high": high}
    for told in (row, {name: str(each) for name, each in row.items()}):  # as in a file
        (line,) = iter_published_baseline_comparisons(told)
        assert (OTHERS in line) == says and "printed is 0.141" in line


def test_the_line_has_the_score_its_interval_and_how_long_answers_and_prompts_are():
    (line,) = iter_published_baseline_comparisons(ROW)
    assert "ROUGE-2 is 0.110 [0.082, 0.138] (99%) on 12 prompts" in line
    assert "answers of 31 tokens" in line and "prompts of 412" in line


@pytest.mark.parametrize("none", [None, "", float("nan")])
def test_without_an_interval_nothing_is_said(none):
    assert not [
        *iter_published_baseline_comparisons(ROW | {"rouge2_low": none, "rouge2_high": none})
    ]
    assert not [*iter_published_baseline_comparisons({**ROW, "rouge2": none, "rouge2_low": none})]


def test_a_share_that_is_printed_in_percent_is_compared_as_a_share():
    own = {"pair": "llama2_13b_68m", "task": "squad", "temperature": 1.0}
    scores = {"exact_match": 0.7, "exact_match_low": 0.5, "exact_match_high": 0.9}
    (line,) = iter_published_baseline_comparisons({**ROW, **own, **scores})
    assert "printed is 0.74." in line
