"""A rule that another package registers is audited; a wrong one is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch import Tensor

from spec_bench.audit.catalogue import SETTINGS, tree_cases
from spec_bench.audit.decoders import enumerated_error
from spec_bench.audit.rules import TOLERANCE, audit_rule, rule_cases
from spec_bench.verify.base import rule
from spec_bench.verify.rules import recursive_rejection
from spec_bench.verify.verdict import Verdict

CUT = SETTINGS["temperature 1.5, top-p 0.9"]
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Verdict]


def right(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
    return recursive_rejection(p, q, tokens, valid, replacement=False)


def timid(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
    """Accepts nine times in ten where it should, the residual as it was."""
    verdict = right(p, q, tokens, valid)
    return verdict._replace(acceptance=0.9 * verdict.acceptance)


def backwards(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
    """Judges the children in the opposite order of their drawing."""
    verdict = right(p, q, tokens.flip(1), valid.flip(1))
    return verdict._replace(acceptance=verdict.acceptance.flip(1))


def misread(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
    """Divides by the draft's own probability after it has changed."""
    return recursive_rejection(p, q, tokens, valid, replacement=True)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[Rule]:
    rule("guest", siblings=("without_replacement",))(request.param)
    yield request.param
    rule.forget("guest")


def errors() -> tuple[float, list[float]]:
    """Of the rule alone, and of the decoders that use it."""
    (case,) = [case for case in rule_cases() if case.name.startswith("guest")]
    alone, _ = audit_rule(case)
    ends = [
        enumerated_error(case.config, CUT)[0]
        for case in tree_cases("exact")
        if case.config.verifier.name == "guest"
        and case.config.heads is None
        and case.tree.policy.spec == "2-1"
    ]
    return alone, ends


@pytest.mark.parametrize("registered", [right], indirect=True)
def test_a_rule_that_registers_is_audited_alone_and_in_decoders(registered: Rule) -> None:
    alone, ends = errors()
    assert alone <= TOLERANCE
    assert ends and max(ends) <= TOLERANCE


@pytest.mark.parametrize("registered", [timid, backwards, misread], indirect=True)
def test_a_wrong_rule_that_registers_is_caught(registered: Rule) -> None:
    alone, ends = errors()
    assert alone > 1e-3
    # Of two tokens, which are what this top-p leaves, the second is certain for the misread rule.
    assert ends and (min(ends) > 1e-4 or registered is misread)


def test_a_rule_taken_out_again_is_audited_no_longer() -> None:
    assert not [case for case in rule_cases() if "guest" in case.name]
