"""Every rule by enumeration; the ways to break one that papers misprint are in mutants.yaml."""

import pytest

from spec_bench.audit.rules import TOLERANCE, enumerate_rule_error, iter_rule_cases


@pytest.mark.parametrize("case", iter_rule_cases(), ids=lambda case: case.name)
def test_the_output_has_the_targets_law(case):
    error, cases = enumerate_rule_error(case, seed=3)
    assert error <= TOLERANCE
    assert cases > 600
