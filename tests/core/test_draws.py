"""Where randomness enters: inverting the cumulative distribution; one generator per row."""

import torch

from spec_bench.core.draws import SeededDraws, inverse_cdf, row_generator, row_seed

CPU = torch.device("cpu")


def test_inverse_cdf_picks_the_interval_of_the_uniform():
    probs = torch.tensor([0.2, 0.0, 0.5, 0.3])
    uniforms = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71, 0.999], dtype=torch.float64)
    assert inverse_cdf(probs, uniforms).tolist() == [0, 0, 2, 2, 3, 3]


def test_a_token_of_probability_zero_is_never_drawn_even_at_the_ends():
    probs = torch.tensor([0.0, 1.0, 0.0])
    uniforms = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    assert inverse_cdf(probs, uniforms).tolist() == [1, 1]


def test_a_probability_of_zero_is_rejected_when_the_uniform_is_zero():
    class Zero(SeededDraws):
        def _uniforms(self, *shape):
            return torch.zeros((1, *shape), dtype=torch.float64)

    first = Zero([]).verdict([2]).first_accepted(0, torch.tensor([[0.0, 0.5]]))
    assert first.tolist() == [1]


def test_first_accepted_is_the_number_of_children_if_all_are_rejected():
    draws = SeededDraws([torch.Generator().manual_seed(0)])
    assert draws.verdict([3]).first_accepted(0, torch.zeros(1, 3)).tolist() == [3]
    assert draws.verdict([3]).first_accepted(0, torch.ones(1, 3)).tolist() == [0]


def test_seeds_differ_by_seed_and_by_prompt():
    assert len({row_seed(s, p) for s in range(5) for p in ("a", "b", "c")}) == 15


def test_a_rows_draws_do_not_depend_on_its_neighbours():
    probs = torch.full((1, 2, 5), 0.2)

    def draw(prompts):
        draws = SeededDraws([row_generator(7, prompt, CPU) for prompt in prompts])
        tokens = draws.categorical(probs.expand(len(prompts), -1, -1), 3)
        noise = draws.gumbel(probs.expand(len(prompts), -1, -1))
        return {p: [tokens[i].tolist(), noise[i].tolist()] for i, p in enumerate(prompts)}

    alone, together = draw(["x"]), draw(["y", "x", "z"])
    assert alone["x"] == together["x"]


def test_seed_and_prompt_do_not_run_into_each_other():
    assert row_seed(1, "2x") != row_seed(12, "x")
