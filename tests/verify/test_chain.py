"""Block verification of a chain in closed form: its own proof, and the loop that a CPU runs."""

import pytest
import torch

from spec_bench.audit.rules import TOLERANCE, all_trees, path_error, random_tables
from spec_bench.verify import at_once
from spec_bench.verify.path_rule import PathVerdict, traversal

LAWS = ["iid", "without_replacement", "deterministic"]
DEPTH = 4


def closed(tree, p):
    return PathVerdict(*at_once.verified(tree, p))


@pytest.mark.parametrize("law", LAWS)
def test_blocks_have_the_targets_law_under_models_that_forget_nothing(law):
    for seed, vocab in enumerate((2, 2, 2, 3)):
        depth = 3 if vocab == 2 else 2
        tables = random_tables(vocab, depth, seed)
        assert path_error(closed, tables, (1,) * depth, law) <= TOLERANCE


@pytest.mark.parametrize("law", LAWS)
def test_the_closed_form_is_the_loop_with_absent_nodes_at_its_end(law):
    trees = all_trees(random_tables(2, DEPTH, 7), (1,) * DEPTH, law)
    tree = trees.tree
    length = (3 * torch.arange(len(tree.tokens)) + 2) % (DEPTH + 1)
    tree.valid &= torch.arange(DEPTH + 1) <= length.unsqueeze(1)
    assert not tree.valid.all()
    loop, found = traversal(tree, trees.p), closed(tree, trees.p)
    assert torch.equal(found.order, loop.order)
    assert torch.allclose(found.success, loop.success, atol=1e-12)
    assert torch.allclose(_laws(found.residual), _laws(loop.residual), atol=1e-12)


def _laws(residual):
    """Scaled to sum to 1: only that much is drawn from."""
    return residual / residual.sum(dim=-1, keepdim=True).clamp(min=1e-300)


def test_a_token_that_the_target_never_says_ends_all_behind_it():
    trees = all_trees(random_tables(2, 2, 1), (1, 1), "iid")
    p = torch.zeros_like(trees.p)
    p[..., 0] = 1.0  # token 1 has no chance, wherever it stands
    success = closed(trees.tree, p).success
    never = trees.tree.tokens[:, 1] == 1
    assert never.any()
    assert success[never].count_nonzero() == 0
    assert success.isfinite().all()
