"""What a rule accepts beside what any rule could: kept while decoding, worked out afterwards."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from spec_bench.audit.catalogue import AuditCase, tree_cases
from spec_bench.audit.decoders import markov_decoder
from spec_bench.audit.rules import children_law
from spec_bench.core.tree import Siblings
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder
from spec_bench.decode.gap import Law, Visit, bounds_of, gaps, law_of, watch, why_no_bound
from spec_bench.records.types import Request
from spec_bench.verify.rules import k_seq, normalised
from tests.families import decoder_settings
from tests.tree.laws import grown
from tests.verify.test_optimal import over_subsets, pair, programme, transport

WARM = SamplingSettings(probability_dtype="float64")
# How children are drawn, how many they are, and how many of them beside the best.
NODES: list[tuple[Siblings, int, int]] = [
    *(("iid", count, 0) for count in (1, 2, 3)),
    *(("without_replacement", count, 0) for count in (1, 2, 3)),
    *(("deterministic", count, 0) for count in (1, 2, 3)),
    *(("top_and_sampled", count, sampled) for sampled in (1, 2, 3) for count in (1, 2, 3, 4)),
]


@pytest.mark.parametrize(("siblings", "count", "sampled"), NODES)
def test_the_bound_at_a_node_is_the_linear_programmes(
    siblings: Siblings, count: int, sampled: int
) -> None:
    for seed in range(8):
        p, q = pair(4, seed)
        tokens, valid, _ = children_law(q.expand(3, -1), count, siblings, sampled)
        given: torch.Tensor | None = q[:, None]
        if siblings == "deterministic":
            given = None
        elif siblings == "top_and_sampled":  # what the best leave, as its tree keeps it
            best = tokens[:1, min(sampled, count) :]
            given = normalised(q.scatter(1, best, 0.0), torch.zeros_like(q))[:, None]
        visits = [Visit(0, p, given, tokens[:1], valid[:1], 0.0)]
        found = bounds_of(visits, Law(siblings, sampled))
        assert found == pytest.approx([programme(p, q, count, siblings, sampled)], abs=1e-7)
        if siblings in ("iid", "without_replacement"):
            exact = [over_subsets(p, q, count, siblings)]
            assert found == pytest.approx(exact, abs=1e-12)
            twice = bounds_of(visits * 2, Law(siblings), step=0.5)
            assert twice == pytest.approx(exact * 2, abs=1e-6)


FEW = ("temperature 1.5, top-p 0.9", "temperature 1, draft at 0")
BOUNDED = {case.tree: case for case in tree_cases("exact") if why_no_bound(case.config) is None}


@pytest.mark.parametrize("case", BOUNDED.values(), ids=lambda case: case.name)
def test_the_bound_at_a_decoders_root_is_that_of_the_children_that_its_tree_draws(
    case: AuditCase,
) -> None:
    for label, settings in case.settings():
        if label not in FEW:
            continue
        built, _ = markov_decoder(case.config, settings, vocab=3)
        visits = watch(built, most=1)
        rows = built.begin([Request("root", case.tree.prompt, built.depth + 1)], seed=0)
        drawn: dict[frozenset[int], float] = defaultdict(float)
        for children, chance in grown(case.tree, settings, built.drafting).items():
            drawn[frozenset(token for token, _ in children)] += chance
        built.step(rows)
        found = bounds_of(visits[:1], law_of(case.config, settings))
        assert found == pytest.approx([transport(visits[0].p[0], drawn)], abs=1e-7), label


def test_watching_changes_no_token_and_keeps_the_nodes_of_each_level() -> None:
    config = read_decoder(decoder_settings("rsd_c", "2-1"), WARM)
    requests = [Request(str(index), (1, 0), 6) for index in range(4)]
    plain, _ = markov_decoder(config, WARM, vocab=3)
    watched, _ = markov_decoder(config, WARM, vocab=3)
    visits = watch(watched, most=5)
    answers = [built.generate(requests, seed=0) for built in (plain, watched)]
    assert [a.tokens for a in answers[0]] == [a.tokens for a in answers[1]]
    found = gaps(visits, Law("without_replacement"))
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
        gap = bounds_of([visit], Law("iid"))[0] - float((weight * accepted).sum())
        assert -1e-12 <= gap <= most
        assert width == 1 or gap > 1e-3


def test_a_single_draw_is_bounded_by_the_overlap_of_the_two_laws() -> None:
    p, q = pair(5, 2)
    token = torch.zeros((1, 1), dtype=torch.long)
    for law in (Law("iid"), Law("without_replacement")):
        (found,) = bounds_of([Visit(0, p, q[:, None], token, token == 0, 0.0)], law)
        assert found == pytest.approx(torch.minimum(p, q).sum().item(), abs=1e-12)
