"""What a draft must accept follows from what calls cost."""

import pytest

from spec_bench.recommend.draft_cost import (
    DRAFT_COST_SHARES,
    PASS_TOKENS,
    compute_break_evens,
    compute_expected_tokens_per_call,
    find_break_even_acceptance,
    measure_pass_costs,
)
from tests.kinds import tiny_pair_of


@pytest.mark.parametrize(("length", "cost"), [(1, 1.5), (3, 2.0), (7, 5.4), (15, 1.01)])
def test_at_the_least_acceptance_a_call_delivers_what_it_costs(length, cost):
    found = find_break_even_acceptance(length, cost)
    assert found is not None and compute_expected_tokens_per_call(length, found) == pytest.approx(
        cost
    )


def test_a_call_that_costs_as_much_as_all_its_tokens_never_pays():
    assert find_break_even_acceptance(2, 3.0) is None
    assert find_break_even_acceptance(2, 0.9) == 0.0


def test_a_draft_that_costs_more_must_accept_more():
    (one, three) = compute_break_evens({1: 1.0, 2: 1.2, 4: 1.5})
    assert (one.draft_tokens, three.draft_tokens) == (1, 3)
    assert one.acceptance_by_draft_share[0.0] == pytest.approx(0.2)  # 1 + a = 1.2
    for each in (one, three):
        wanted = [each.acceptance_by_draft_share[share] for share in DRAFT_COST_SHARES]
        assert None not in wanted and wanted == sorted(wanted)


def test_a_pass_of_one_token_is_the_measure_of_the_others():
    costs = measure_pass_costs(tiny_pair_of("llama")[0])
    assert tuple(costs) == PASS_TOKENS and costs[1] == 1.0
    assert all(cost > 0 for cost in costs.values())
