"""A rule that another package registers is audited; a wrong one is caught."""

from dataclasses import dataclass

import pytest

from spec_bench.audit.catalogue import SETTINGS, tree_cases
from spec_bench.audit.decoders import enumerated_error
from spec_bench.audit.models import audit_pair
from spec_bench.audit.rules import TOLERANCE, audit_rule, rule_cases
from spec_bench.jobs.config.cells import Cell
from spec_bench.verify.base import rule
from spec_bench.verify.path_rule import Traversal, traversal
from spec_bench.verify.rules import recursive_rejection
from tests.families import decoder_settings
from tests.jobs.tiny import make_family
from tests.said import naming

CUT = SETTINGS["temperature 1.5, top-p 0.9"]


def right(p, q, tokens, valid):
    return recursive_rejection(p, q, tokens, valid, replacement=False)


def timid(p, q, tokens, valid):
    """Accepts nine times in ten where it should, the residual as it was."""
    verdict = right(p, q, tokens, valid)
    return verdict._replace(acceptance=0.9 * verdict.acceptance)


def backwards(p, q, tokens, valid):
    """Judges the children in the opposite order of their drawing."""
    verdict = right(p, q, tokens.flip(1), valid.flip(1))
    return verdict._replace(acceptance=verdict.acceptance.flip(1))


def misread(p, q, tokens, valid):
    """Divides by the draft's own probability after it has changed."""
    return recursive_rejection(p, q, tokens, valid, replacement=True)


def eager(p, q, tokens, valid):
    """Accepts as if the target were surer than it is."""
    verdict = right(p, q, tokens, valid)
    return verdict._replace(acceptance=(1.3 * verdict.acceptance).clamp(max=1.0))


def brittle(p, q, tokens, valid):
    """Knows small vocabularies alone."""
    return right(p, q, tokens, valid) if p.shape[1] < 9 else 1 / 0


@dataclass(frozen=True)
class Whole(Traversal):
    """Traversal with a choice that its exactness hangs on, and nobody says so."""

    factor: float = 1.0

    def judge(self, depth):
        def judged(tree, p):
            verdict = traversal(tree, p)
            return verdict._replace(success=(self.factor * verdict.success).clamp(max=1.0))

        return judged


@pytest.fixture
def registered(request):
    laws = ("iid", "without_replacement") if request.param is Whole else ("without_replacement",)
    rule("guest", siblings=laws)(request.param)
    yield request.param
    rule.forget("guest")


@pytest.mark.parametrize("registered", [right, timid, backwards, misread], indirect=True)
def test_a_rule_that_registers_is_audited_alone_and_in_decoders(registered):
    (case,) = [case for case in rule_cases() if case.name.startswith("guest")]
    alone, _ = audit_rule(case)
    configs = [case.config for case in tree_cases("exact") if case.tree.policy.spec == "2-1"]
    ours = [each for each in configs if each.verifier.name == "guest" and each.heads is None]
    ends = [enumerated_error(config, CUT)[0] for config in ours]
    if registered is right:
        assert max(alone, *ends) <= TOLERANCE
    else:
        assert alone > 1e-3
        # Of two tokens, which this top-p leaves, the second is certain for the misread rule.
        assert min(ends) > 1e-4 or registered is misread


@pytest.mark.parametrize("name", ["rsd_c", "rsd_s"])
@pytest.mark.parametrize("registered", [right, timid, backwards, misread, eager], indirect=True)
def test_a_job_calls_a_rule_of_another_package_exact_only_if_it_is(registered, name):
    settings = decoder_settings(name) | {"verifier": {"rule": "guest"}}
    if registered is right:
        assert Cell.read(settings).config.verifier.mark == "exact"
        return
    with pytest.raises(ValueError, match=naming("guest", "tests", "off by")) as raised:
        Cell.read(settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("registered", [Whole], indirect=True)
def test_a_rule_of_whole_trees_is_enumerated_with_the_settings_that_it_has(registered):
    settings = decoder_settings("sd")
    assert Cell.read(settings | {"verifier": {"rule": "guest"}}).config.verifier.mark == "exact"
    with pytest.raises(ValueError, match=naming("guest", "tests", "off by")):
        Cell.read(settings | {"verifier": {"rule": "guest", "factor": 1.3}})


@pytest.mark.parametrize("registered", [right, brittle], indirect=True)
def test_a_pairs_audit_goes_on_whatever_another_packages_rule_does(registered, tmp_path):
    make_family(tmp_path)
    paths = [str(tmp_path / name) for name in ("target", "draft")]
    lines = list(audit_pair(*paths, ["The harbour"], 1))
    guests = [line for line in lines if "+ guest" in line.subject]
    own = [line for line in lines if line not in guests]
    assert {line.subject.partition(" ")[0] for line in lines} >= {"widths", "chain", "lookup:"}
    assert guests and lines.index(guests[0]) < lines.index(own[-1])
    assert all(line.passed for line in own)
    assert {line.passed for line in guests} == {registered is right}
