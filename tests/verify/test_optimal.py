"""The optimal rule, top-and-sample and the bound."""

import itertools
from collections import defaultdict

import pytest
import torch
from scipy.optimize import linprog

from scripts.check.acceptance_bound import bound_iid, bound_without_replacement
from spec_bench.audit.rules import enumerate_children, iter_rule_cases
from spec_bench.decode.config import read_decoder
from spec_bench.verify import optimal as optimal_rule
from spec_bench.verify.optimal import EPS, optimal, plan_candidate_choice, remove_best_tokens
from spec_bench.verify.rules import find_k_seq_rho

CASES = {case.name: case for case in iter_rule_cases()}
IID = CASES["optimal, i.i.d."]
TOP = CASES["top_and_sample, top and sampled, 1 drawn"]


def pair(vocab, seed):
    """p and q [1, V], float64, of a sharpness that goes with the seed; q leaves some tokens out."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, vocab), generator=generator, dtype=torch.float64)
    logits *= (0.3, 1.0, 3.0, 6.0)[seed % 4]
    if seed % 3 == 0:
        logits[1, torch.rand(vocab, generator=generator) < 0.2] = -torch.inf
        logits[1, 0] = 0.0
    p, q = logits.softmax(dim=-1)
    return p[None], q[None]


def accepted(case, p, q, children):
    """P(a child is accepted), over all draws of the children."""
    tokens, valid, chance = enumerate_children(
        q.expand(3, -1), children, case.law, case.sampled_count
    )
    laws = None if case.law == "deterministic" else q.expand(len(tokens), 1, -1)
    verdict = case.rule(p.expand(len(tokens), -1), laws, tokens, valid)
    return 1 - float(chance @ (1 - verdict.acceptance).prod(dim=1))


def programme(p, q, children, law, sampled=1):
    """The optimum over all rules: how much of p all sets of candidates can carry together."""
    tokens, valid, chance = enumerate_children(q.expand(3, -1), children, law, sampled)
    drawn = defaultdict(float)
    for own, there, weight in zip(tokens, valid, chance.tolist(), strict=True):
        drawn[frozenset(own[there].tolist())] += weight
    flows = [(row, token) for row, own in enumerate(drawn) for token in own]
    limits = torch.zeros((len(drawn) + p.shape[1], len(flows)), dtype=torch.float64)
    for flow, (row, token) in enumerate(flows):
        limits[row, flow] = limits[len(drawn) + token, flow] = 1
    most = [*drawn.values(), *p[0].tolist()]
    return -float(linprog(-torch.ones(len(flows)).numpy(), limits.numpy(), most).fun)


def over_subsets(p, q, children, law):
    """1 + min_H (p(H) - P(all candidates in H))."""
    tokens, valid, chance = enumerate_children(q.expand(3, -1), children, law)
    least = 0.0
    for chosen in itertools.product((False, True), repeat=p.shape[1]):
        inside = torch.tensor(chosen)
        all_in = (inside[tokens] | ~valid).all(dim=1)
        least = min(least, float(p[0, inside].sum() - chance[all_in].sum()))
    return 1 + least


@pytest.mark.parametrize(
    ("law", "bound"), [("iid", bound_iid), ("without_replacement", bound_without_replacement)]
)
def test_the_bound_is_the_linear_programmes_and_the_least_over_all_sets(law, bound):
    for seed, (vocab, children) in enumerate([(3, 2), (4, 2), (4, 3), (5, 2), (3, 3), (6, 2)]):
        p, q = pair(vocab, seed)
        found = bound(p, q, children).item()
        assert found == pytest.approx(over_subsets(p, q, children, law), abs=1e-12)
        assert found == pytest.approx(programme(p, q, children, law), abs=1e-7)


@pytest.mark.parametrize("sampled", [1, 2, 3])
def test_the_bound_beside_the_drafts_best_is_the_linear_programmes(sampled):
    for seed in range(8):
        for children in (1, 2, 3, 4):
            p, q = pair(4, seed)
            drawn = min(sampled, children)
            best_first = q.sort(descending=True, stable=True).indices
            listed = best_first[:, : children - drawn]
            own = q.scatter(-1, listed, 0.0)
            if own.sum() == 0:
                continue  # the best are all of the draft's support
            there = q.gather(-1, listed) > 0
            sure = torch.where(there, p.gather(-1, listed), 0.0).sum(dim=-1)
            found = bound_iid(p, own / own.sum(), drawn, sure).item()
            expected = programme(p, q, children, "top_and_sampled", sampled)
            assert found == pytest.approx(expected, abs=1e-7)


def test_the_optimal_rule_accepts_what_the_bound_says_and_no_less_than_k_seq():
    for seed in range(60):
        children = 1 + seed % 8
        p, q = pair(4 + seed, seed)
        count = torch.full((1, 1), float(children), dtype=torch.float64)
        law = plan_candidate_choice(p, q, count).distribution
        got = torch.minimum(p, law).sum().item()
        assert law.sum().item() == pytest.approx(1, abs=1e-12)
        assert got >= bound_iid(p, q, children).item() - 1.01 * EPS
        kept = torch.minimum(q, p / find_k_seq_rho(p, q, count)).sum().item()
        assert got >= 1 - (1 - kept) ** children - 1.01 * EPS


def test_what_the_rule_accepts_is_the_overlap_of_p_and_the_chosen_ones_law():
    for seed in range(6):
        p, q = pair(4, seed)
        law = plan_candidate_choice(p, q, torch.full((1, 1), 3.0, dtype=torch.float64)).distribution
        assert accepted(IID, p, q, 3) == pytest.approx(torch.minimum(p, law).sum().item())


def test_bins_in_place_of_a_sort_cost_hardly_any_acceptance(monkeypatch):
    p, q = pair(3000, 1)
    count = torch.full((1, 1), 4.0, dtype=torch.float64)
    whole = torch.minimum(p, plan_candidate_choice(p, q, count).distribution).sum()
    monkeypatch.setattr(optimal_rule, "POINTS", 1024)
    binned = plan_candidate_choice(p, q, count).distribution
    assert torch.minimum(p, binned).sum() > whole - 2e-4
    assert binned.sum().item() == pytest.approx(1, abs=1e-12)


def test_a_batch_is_its_nodes_one_by_one():
    pairs = [pair(9, seed) for seed in range(8)]
    p, q = (torch.cat(part) for part in zip(*pairs, strict=True))
    tokens = torch.arange(24).view(8, 3) % 9
    valid = torch.tensor([[n > 0, n > 1, n > 2] for n in (3, 2, 1, 0, 3, 2, 1, 0)])
    whole = optimal(p, q.unsqueeze(1), tokens, valid)
    for node in range(8):
        one = slice(node, node + 1)
        alone = optimal(p[one], q[one].unsqueeze(1), tokens[one], valid[one])
        torch.testing.assert_close(whole.acceptance[one], alone.acceptance)
        torch.testing.assert_close(whole.residual[one], alone.residual)


def test_top_and_sample_accepts_the_optimum_of_its_candidates():
    for seed in range(12):
        p, q = pair(4, seed)
        for children in (2, 3):
            best = q.sort(descending=True, stable=True).indices[:, : children - 1]
            there = q.gather(1, best) > 0
            w = remove_best_tokens(q, best, there)
            top = torch.zeros_like(p, dtype=torch.bool).scatter(1, best, there)
            most = float(torch.where(top, p, torch.minimum(p, w)).sum())
            assert accepted(TOP, p, q, children) == pytest.approx(most, abs=1e-12)
            assert programme(p, q, children, "top_and_sampled") == pytest.approx(most, abs=1e-7)


def test_a_tree_and_a_rule_that_draw_another_number_are_refused():
    tree = {"policy": "top_and_sample", "widths": [3, 2], "sampled": 2}
    blocks = {"name": "mixed", "drafter": {"kind": "language_model"}, "tree": tree}
    with pytest.raises(ValueError, match=r"tree.sampled is 2 and verifier.sampled 1"):
        read_decoder({**blocks, "verifier": {"rule": "top_and_sample"}})
    rule = {"rule": "top_and_sample", "sampled": 2}
    assert read_decoder({**blocks, "verifier": rule}).spec == "3-2"
