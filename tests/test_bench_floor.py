"""What a pass cannot go below: every matrix once, and that is less than a pass."""

from __future__ import annotations


def test_every_weight_but_the_norms_is_multiplied_once_in_less_time_than_a_pass() -> None:
    from scripts.bench.floor import floor, matrices
    from scripts.family.embedded_pair import embedded_pair, embedded_requests

    module = embedded_pair()[0].module
    # The vocabulary's matrix is the embedding's, a parameter once.
    weights = sum(each.numel() for each in module.parameters() if each.dim() > 1)
    assert sum(each.numel() for each in matrices(module)) == weights
    found = floor(embedded_requests(1, 8), rounds=3)
    assert 0 < found.products_ms < found.pass_ms < found.step_ms
    assert found.highest_ratio == found.generate_ms / found.products_ms > 1
