"""What a rule accepts beside what any rule could: kept while decoding, worked out afterwards."""

from __future__ import annotations

import pytest
import torch

from spec_bench.audit.decoders import markov_decoder
from spec_bench.audit.gap import Visit, bound, gaps, watch
from spec_bench.core.tree import Siblings
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder
from spec_bench.records import Request
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
    assert bound(visit, law) == pytest.approx(programme(p, q, 2, law), abs=1e-7)
    if law in ("iid", "without_replacement"):
        assert bound(visit, law) == pytest.approx(over_subsets(p, q, 2, law), abs=1e-12)


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
    with pytest.raises(ValueError, match="one row at a time"):
        watch(markov_decoder(config, WARM, vocab=3, rows=2)[0], most=5)


def test_a_single_draw_is_bounded_by_the_overlap_of_the_two_laws() -> None:
    p, q = pair(5, 2)
    token = torch.zeros((1, 1), dtype=torch.long)
    for law in ("iid", "without_replacement"):
        found = bound(Visit(0, p, q[:, None], token, token == 0, 0.0), law)  # type: ignore[arg-type]
        assert found == pytest.approx(torch.minimum(p, q).sum().item(), abs=1e-12)
