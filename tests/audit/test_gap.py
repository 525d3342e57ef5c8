"""What a rule accepts beside what any rule could: kept while decoding, worked out afterwards."""

from __future__ import annotations

import pytest
import torch

from spec_bench.audit.decoders import markov_decoder
from spec_bench.core.tree import Siblings
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder
from spec_bench.decode.gap import Visit, bounds_of, gaps, watch, why_no_bound
from spec_bench.records import Request
from spec_bench.verify.rules import k_seq
from tests.families import decoder_settings
from tests.verify.test_optimal import children_law, over_subsets, pair, programme

WARM = SamplingSettings(probability_dtype="float64")
LAWS: tuple[Siblings, ...] = ("iid", "without_replacement", "deterministic", "top_and_sampled")


@pytest.mark.parametrize("law", LAWS)
def test_the_bound_at_a_node_is_the_linear_programmes(law: Siblings) -> None:
    p, q = pair(4, 5)
    tokens, valid, _ = children_law(q.expand(3, -1), 2, law)
    given = None if law == "deterministic" else q[:, None]
    if law == "top_and_sampled":  # what the best leaves, as its tree keeps it
        rest = q.scatter(1, tokens[:1, 1:], 0.0)
        given = (rest / rest.sum())[:, None]
    visit = Visit(0, p, given, tokens[:1], valid[:1], 0.0)
    assert bounds_of([visit], law) == pytest.approx([programme(p, q, 2, law)], abs=1e-7)
    if law in ("iid", "without_replacement"):
        exact = over_subsets(p, q, 2, law)
        assert bounds_of([visit], law) == pytest.approx([exact], abs=1e-12)
        assert bounds_of([visit, visit], law, step=0.5) == pytest.approx([exact] * 2, abs=1e-6)


def test_watching_changes_no_token_and_keeps_the_nodes_of_each_level() -> None:
    config = read_decoder(decoder_settings("rsd_c", "2-1"), WARM)
    requests = [Request(str(index), (1, 0), 6) for index in range(4)]
    plain, _ = markov_decoder(config, WARM, vocab=3)
    watched, _ = markov_decoder(config, WARM, vocab=3)
    visits = watch(watched, most=5)
    answers = [built.generate(requests, seed=0) for built in (plain, watched)]
    assert [a.tokens for a in answers[0]] == [a.tokens for a in answers[1]]
    found = gaps(visits, "without_replacement")
    assert [(gap.level, gap.nodes) for gap in found] == [(0, 5), (1, 5)]
    assert all(0 < gap.accepted <= 1 and 0 < gap.bound <= 1 for gap in found)
    several, _ = markov_decoder(config, WARM, vocab=3, rows=2)
    watch(several, most=5)
    with pytest.raises(ValueError, match="one row at a time"):
        several.generate(requests, seed=0)


def test_only_exact_node_rules_over_a_fixed_number_of_children_have_a_bound() -> None:
    def why(name: str, spec: str) -> str:
        return why_no_bound(read_decoder(decoder_settings(name, spec), WARM)) or ""

    for name, spec in (("sd", "2"), ("rsd_c", "2-1"), ("optimal", "2x2"), ("specinfer", "2-1")):
        assert not why(name, spec)
    assert "'stochastic_beam'" in why("rsd_s", "2x2")
    assert "'traversal'" in why("block", "2")
    assert "one draft model" in why("lookup_or_draft", "3")


def test_a_rule_that_reaches_the_bound_has_no_gap() -> None:
    """Of one i.i.d. child rejection accepts the overlap in the mean; of two, less than could be."""
    p, q = pair(4, 5)
    for width, most in ((1, 1e-12), (2, 0.2)):
        tokens, valid, weight = children_law(q.expand(4**width, -1), width, "iid")
        given = p.expand(len(tokens), -1), q.expand(len(tokens), -1)[:, None], tokens, valid
        accepted = 1 - (1 - k_seq(*given).acceptance).prod(dim=1)
        visit = Visit(0, p, q[:, None], tokens[:1], valid[:1], 0.0)
        gap = bounds_of([visit], "iid")[0] - float((weight * accepted).sum())
        assert -1e-12 <= gap <= most
        assert width == 1 or gap > 1e-3


def test_a_single_draw_is_bounded_by_the_overlap_of_the_two_laws() -> None:
    p, q = pair(5, 2)
    token = torch.zeros((1, 1), dtype=torch.long)
    for law in ("iid", "without_replacement"):
        (found,) = bounds_of([Visit(0, p, q[:, None], token, token == 0, 0.0)], law)  # type: ignore[arg-type]
        assert found == pytest.approx(torch.minimum(p, q).sum().item(), abs=1e-12)
