"""Every rule by enumeration; the ways to break one that papers misprint are in mutants.yaml."""

import pytest

from spec_bench.audit.rules import TOLERANCE, audit_rule, list_rule_cases


@pytest.mark.parametrize("case", list_rule_cases(), ids=lambda case: case.name)
def test_the_output_has_the_targets_law(case):
    error, cases = audit_rule(case, seed=3)
    assert error <= TOLERANCE
    assert cases > 600
