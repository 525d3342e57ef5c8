"""What a pass must move and compute, counted by hand for tiny models; ceilings by a known clock."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.bench.ceilings import (
    Ceilings,
    attainment,
    draft_passes,
    floating_point_operations,
    mean_context,
    mean_pending,
    measure_ceilings,
    target_pass,
)
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.measure.bandwidth import free_bytes
from spec_bench.measure.pass_cost import Pass, bytes_moved, model_cost
from spec_bench.records.types import Generation, Request, StepRecord

CPU = torch.device("cpu")
# Two layers of width 64, 512 tokens, float32. Llama: 128 wide gated feed-forward, four heads.
LLAMA_LAYER = 4 * 64 * 64 + 3 * 64 * 128
LLAMA_READ = 2 * (LLAMA_LAYER + 2 * 64) + 64 + 512 * 64
# OPT: biases everywhere, feed-forward of 256, two norms a layer and one at the end.
OPT_LAYER = 4 * 64 * 64 + 2 * 64 * 256
OPT_READ = 2 * (OPT_LAYER + 4 * 64 + 256 + 64 + 2 * 2 * 64) + 2 * 64 + 512 * 64
SLOT_BYTES = 2 * 2 * 64 * 4


def tiny(name: str, seed: int = 0) -> HuggingFaceModel:
    return load_model(ModelSpec(f"random:{name}", seed=seed))


def decoded(*accepted: int, depth: int = 2) -> Generation:
    steps = tuple(StepRecord(depth, depth, a, a + 1) for a in accepted)
    tokens = tuple(range(sum(a + 1 for a in accepted)))
    return Generation("0", tokens, "length", steps, 0.0, 0.8, 0.2, 0.4)


def test_a_pass_of_llama_reads_weights_once_and_only_the_rows_looked_up() -> None:
    model = tiny("llama_tiny")
    cost = model_cost(model.module, model.bytes_per_slot)
    assert cost.weight_bytes == 4 * LLAMA_READ == 460_032
    tokens, context = 3, 10
    moved = 460_032 + tokens * (64 * 4 + SLOT_BYTES) + context * SLOT_BYTES + tokens * 512 * 4
    assert bytes_moved(cost, Pass(tokens, context, 0, logits=tokens)) == moved == 480_256


def test_opts_table_is_its_lm_head_and_only_its_positions_are_looked_up() -> None:
    model = tiny("opt_tiny")
    cost = model_cost(model.module, model.bytes_per_slot)
    assert cost.weight_bytes == 4 * OPT_READ == 531_456
    assert cost.lookup_bytes == 64 * 4
    moved = 531_456 + 3 * (64 * 4 + SLOT_BYTES) + 10 * SLOT_BYTES + 1 * 512 * 4
    assert bytes_moved(cost, Pass(3, 10, 0, logits=1)) == moved == 547_584


@pytest.mark.parametrize(("name", "layer"), [("llama_tiny", LLAMA_LAYER), ("opt_tiny", OPT_LAYER)])
def test_the_head_is_multiplied_for_logits_only_and_attention_for_what_is_seen(
    name: str, layer: int
) -> None:
    model = tiny(name)
    cost = model_cost(model.module, model.bytes_per_slot)
    seen = 11 + 12 + 13
    attention = 2 * (2 * 64) * 2 * seen  # scores and values, each a multiplication and an addition
    flop = 2 * (2 * layer * 3 + 64 * 512 * 2) + attention
    assert floating_point_operations(cost, Pass(3, 10, seen, logits=2)) == flop


def test_heads_that_share_keys_and_values_compute_more_than_they_read() -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 32}
    with torch.device("meta"):
        config = LlamaConfig(**shape, num_key_value_heads=1, intermediate_size=64)
        module = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    cost = model_cost(module, slot_bytes=2 * 16 * 2)
    assert cost.pair_flop == 2 * 2 * 4 * 16
    assert cost.logit_bytes == 32 * 2


def test_a_trees_nodes_see_the_context_and_their_own_path() -> None:
    root_two_two = target_pass((2, 2), context=10)
    assert root_two_two == Pass(5, 10, visible=11 + 2 * 12 + 2 * 13, logits=5)
    assert target_pass((), context=10) == Pass(1, 10, visible=11, logits=1)


def test_a_draft_runs_what_is_pending_and_every_level_but_the_last() -> None:
    assert draft_passes((), 10, 1) == []
    assert draft_passes((2, 4, 4), 10, pending=1) == [
        Pass(1, 10, visible=11, logits=1),
        Pass(2, 11, visible=2 * 12, logits=2),
        Pass(4, 13, visible=4 * 13, logits=4),
    ]
    # The last committed token but one is not in the draft's cache yet.
    assert draft_passes((1,), 10, pending=2) == [Pass(2, 9, visible=10 + 11, logits=1)]


def test_context_grows_by_what_is_emitted_and_full_acceptance_leaves_a_token_pending() -> None:
    # roots stand behind 4, 7, 8 and behind 4 tokens; the second iteration has two pending
    generations = [decoded(2, 0, 1), decoded(2)]
    assert mean_context(generations, prompt_tokens=5) == (4 + 7 + 8 + 4) / 4
    assert mean_pending(generations) == 5 / 4


def counting(model: HuggingFaceModel) -> list[tuple[int, int]]:
    """From now on, (tokens, visible pairs) of every pass of a model."""
    seen: list[tuple[int, int]] = []
    forward = model.forward

    def recorded(*arguments: Any, **options: Any) -> Any:
        seen.append((arguments[3].numel(), int(arguments[5].sum())))
        return forward(*arguments, **options)

    model.forward = recorded  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(
    "tree",
    [
        {"policy": "chain", "depth": 3},
        {"policy": "widths", "widths": [2, 2, 1], "replacement": False},
        {"policy": "stochastic_beam", "width": 3, "depth": 2},
    ],
    ids=lambda tree: tree["policy"],
)
def test_the_passes_counted_are_the_passes_run(tree: dict[str, Any]) -> None:
    target, draft = tiny("llama_tiny"), tiny("llama_tiny", seed=1)
    settings = {
        "name": "counted",
        "drafter": {"kind": "language_model"},
        "tree": tree,
        "verifier": {"rule": "simulated", "acceptance": 0.8},
    }
    decoder = build_decoder(settings, target, [draft], SamplingSettings(), 1)
    asked = Request("0", tuple(range(7)), 24)
    decoder.reserve(decoder.slots_needed(7, 24))
    by_target, by_draft = counting(target), counting(draft)
    generations = decoder.generate([asked], seed=0)
    calls = len(generations[0].steps)
    levels = decoder.policy.shape.levels
    context, pending = mean_context(generations, 7), mean_pending(generations)
    assert pending > 1
    verified = target_pass(levels, context)
    ran = by_target[1:]  # the first is the prefill
    assert len(ran) == calls
    assert calls * verified.tokens == sum(tokens for tokens, _ in ran)
    assert calls * verified.visible == pytest.approx(sum(pairs for _, pairs in ran))
    drafted = draft_passes(levels, context, pending)
    assert len(by_draft) - 1 == calls * len(drafted)
    run = sum(tokens for tokens, _ in by_draft[1:])
    assert calls * sum(one.tokens for one in drafted) == pytest.approx(run)


def test_the_roofline_is_the_longer_of_moving_and_computing() -> None:
    ceilings = Ceilings(bytes_per_s=100.0, flop_per_s=1000.0, bandwidth_from="", matmul_from="")
    assert ceilings.roofline_s(200, 1000) == 2.0
    assert ceilings.bound_by(200, 1000) == "memory"
    assert ceilings.roofline_s(200, 5000) == 5.0
    assert ceilings.bound_by(200, 5000) == "matmul"


def test_ceilings_are_bytes_and_operations_over_the_shortest_time() -> None:
    lengths_s = [9.0, 4.0, 9.0, 5.0, 9.0, 8.0, 2.0, 3.0]  # two of sum, product, copy, matmul
    clock = itertools.accumulate(part for length_s in lengths_s for part in (0.0, length_s))
    ceilings = measure_ceilings(CPU, torch.bfloat16, 2**16, 8, 2, lambda: next(clock))
    assert ceilings.bytes_per_s == 2**16 / 4.0
    assert ceilings.flop_per_s == 2 * 8**3 / 2.0
    assert ceilings.bandwidth_from.startswith("sum over")
    assert ceilings.columns()["bandwidth_gb_s"] == 2**16 / 4.0 / 1e9


def test_an_iterations_bound_is_its_passes_one_after_the_other() -> None:
    model = tiny("llama_tiny")
    cost = model_cost(model.module, model.bytes_per_slot)
    ceilings = Ceilings(1e8, 1e12, "", "")
    generations = [decoded(2, 0, 1, 0)]
    row = attainment(ceilings, cost, cost, (1, 1), generations, prompt_tokens=5)
    context = (4 + 7 + 8 + 10) / 4
    passes = [target_pass((1, 1), context), *draft_passes((1, 1), context, 5 / 4)]
    bounds_ms = [bytes_moved(cost, one) / 1e8 * 1e3 for one in passes]
    assert row["bytes_per_target_call"] == bytes_moved(cost, passes[0])
    assert row["memory_bound_ms"] == pytest.approx(bounds_ms[0])
    assert (row["bound_by"], row["draft_calls"]) == ("memory", 2)
    assert [row[f"{part}_ms"] for part in ("target_call", "draft", "iteration")] == pytest.approx(
        [100.0, 50.0, 200.0]
    )
    assert row["draft_attained"] == pytest.approx(sum(bounds_ms[1:]) / 50.0)
    assert row["attained"] == pytest.approx(sum(bounds_ms) / 200.0)


def test_nothing_drafted_leaves_the_drafts_columns_empty() -> None:
    model = tiny("llama_tiny")
    cost = model_cost(model.module, model.bytes_per_slot)
    generations = [decoded(0, 0, depth=0)]
    row = attainment(Ceilings(1e8, 1e12, "", ""), cost, cost, (), generations, prompt_tokens=5)
    drafting = ("bytes_per_draft_call", "draft_memory_bound_ms", "draft_ms", "draft_attained")
    assert {row[column] for column in drafting} == {""}
    assert row["iteration_memory_bound_ms"] == row["memory_bound_ms"]
    assert row["attained"] == pytest.approx(row["memory_bound_ms"] / 400.0)


def test_some_memory_is_free_on_the_cpu() -> None:
    assert free_bytes(CPU) > 2**20
