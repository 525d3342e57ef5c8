"""Efficiency metrics on hand-made generations whose numbers can be counted on fingers."""

import pytest

from spec_bench.metrics import CellRecords, calls, efficiency, metric
from spec_bench.records.types import Generation, StepRecord
from tests.said import naming


def generation(prompt_id="p", accepted=(), depth=3, tokens=None, nodes=3, **seconds):
    """A generation with one target call for each entry of ``accepted``, cut at ``tokens``."""
    emitted = sum(a + 1 for a in accepted)
    count = left = emitted if tokens is None else tokens
    steps = []
    for a in accepted:
        steps.append(StepRecord(nodes, depth, a, min(a + 1, left)))
        left -= steps[-1].delivered
    times = {"prefill_s": 1.0, "decode_s": 2.0, "draft_s": 0.5, "target_s": 1.0} | seconds
    return Generation(prompt_id, tuple(range(count)), "length", tuple(steps), **times)


def value(name, generations, **more):
    """A registered metric's number."""
    return metric[name].value(CellRecords(generations, **more))


def test_block_efficiency_is_a_ratio_of_sums_and_not_a_mean_of_means():
    cell = [generation(accepted=(3,)), generation(accepted=(0, 0, 0))]
    assert value("block_efficiency", cell) == (4 + 3) / 4  # the mean of means would be 2.5


def test_block_efficiency_of_autoregressive_decoding_is_exactly_one():
    cell = [generation(accepted=(0,) * 7, depth=0, nodes=0)]
    assert value("block_efficiency", cell) == 1.0


def test_block_efficiency_counts_tokens_that_were_not_delivered():
    cell = [generation(accepted=(3,), tokens=2)]
    assert value("block_efficiency", cell) == 4.0
    assert efficiency.delivered_tokens(cell) == 2


def test_mbsu_divides_by_the_cost_of_the_draft_calls():
    assert calls.mbsu(2.166, 2, 0.017352) == pytest.approx(2.093, abs=1e-3)  # RSD, Table 1


def test_mbsu_without_a_drafting_cost_is_the_block_efficiency():
    assert calls.mbsu(1.7, 0, 0.0) == 1.7


def test_acceptance_rate_by_depth_conditions_on_reaching_the_depth():
    # Four walks in a tree of two levels: depth 1 is left by 3 of 4, depth 2 by 1 of those 3.
    cell = [generation(accepted=(0, 1, 1, 2), depth=2)]
    assert calls.acceptance_rate_by_depth(cell) == (3 / 4, 1 / 3)


def test_overall_acceptance_rate_pools_the_depths():
    cell = [generation(accepted=(0, 1, 1, 2), depth=2)]
    assert value("acceptance_rate", cell) == (3 + 1) / (4 + 3)


def test_a_tree_that_was_shallower_does_not_count_at_the_depths_it_lacks():
    cell = [generation(accepted=(2,), depth=2), generation(accepted=(1,), depth=1)]
    assert calls.acceptance_rate_by_depth(cell) == (1.0, 1.0)
    assert value("acceptance_rate", cell) == 1.0


def test_a_depth_that_no_walk_came_close_to_has_no_rate():
    assert calls.acceptance_rate_by_depth([generation(accepted=(0,))]) == (0.0, None, None)


def test_autoregressive_decoding_has_no_acceptance_rate():
    cell = [generation(accepted=(0, 0), depth=0)]
    assert value("acceptance_rate", cell) is None
    assert calls.acceptance_rate_by_depth(cell) == ()


def test_token_rates_count_delivered_tokens_with_and_without_the_prefill():
    cell = [generation(accepted=(3,), tokens=3, prefill_s=1.0, decode_s=2.0)]
    assert value("token_rate", cell) == 1.5
    assert value("token_rate_end_to_end", cell) == 1.0


def test_host_overhead_is_what_the_forward_passes_leave_of_the_decoding_time():
    cell = [generation(decode_s=4.0, draft_s=1.0, target_s=2.0)]
    assert value("host_overhead", cell) == 0.25


def test_energy_is_joules_per_delivered_token():
    cell = [generation(accepted=(1,), energy_j=6.0), generation(accepted=(0,), energy_j=3.0)]
    assert value("energy_j_per_token", cell) == 3.0


def test_one_unmetered_prompt_leaves_no_energy():
    cell = [generation(accepted=(1,), energy_j=6.0), generation(accepted=(1,))]
    assert value("energy_j_per_token", cell) is None


def test_no_seconds_no_rate():
    assert value("token_rate", [generation(accepted=(1,), decode_s=0.0)]) is None


def test_speedup_matches_prompts_by_id_and_not_by_position():
    cell = [
        generation("a", (1,), tokens=10, decode_s=1.0),
        generation("b", (1,), tokens=30, decode_s=3.0),
    ]
    baseline = [
        generation("b", (0,), tokens=30, decode_s=6.0),
        generation("a", (0,), tokens=10, decode_s=2.0),
    ]
    assert value("speedup", cell, baseline=baseline) == 2.0
    assert [g.prompt_id for g in efficiency.matched(cell, baseline)] == ["a", "b"]


def test_speedup_against_a_truncated_baseline_is_refused_by_name():
    with pytest.raises(ValueError, match=naming("baseline", "b, c")):
        value("speedup", [generation(i) for i in "abc"], baseline=[generation("a")])
    with pytest.raises(ValueError, match=naming("cell: b")):
        value("speedup", [generation("a")], baseline=[generation("a"), generation("b")])


def test_a_prompt_that_was_counted_twice_is_refused():
    with pytest.raises(ValueError, match=naming("twice", "a")):
        value("speedup", [generation("a"), generation("a")], baseline=[generation("a")])
