"""transformers' own generation as rows: the same tokens, calls counted, marked, and refused."""

import copy

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode import generate
from spec_bench.decode.config import read_decoder
from spec_bench.decode.generate import GenerateDecoder, GeneratedRow, build_step_records
from spec_bench.engine.generate import Assistance, TargetPassSize, compute_prompt_s
from spec_bench.metrics.calls import block_efficiency
from spec_bench.records.types import Request, StepRecord
from tests.families import GREEDY, built, decoder_settings, random_requests, tiny_pair

NAMES = ("hf_generate", "hf_assisted", "hf_prompt_lookup")
WARM = SamplingSettings(temperature=1.0, top_k=3)
# Prompts that repeat themselves, so that there is something to look up.
REQUESTS = [
    Request(r.prompt_id, tuple(r.prompt_ids) * 3, 20, (34, 7))
    for r in random_requests(6, 20, seed=2)
]


def answers(name, settings, requests=REQUESTS, rows=1, seed=0):
    return built(name, tiny_pair("llama"), settings, rows).generate(requests, seed)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_are_ours_token_for_token_and_as_probable(name):
    ours, theirs = answers("ar", GREEDY), answers(name, GREEDY)
    assert [(g.tokens, g.finish) for g in theirs] == [(g.tokens, g.finish) for g in ours]
    assert {g.finish for g in theirs} == {"stop", "length"}
    assert [g.log_likelihood for g in theirs] == pytest.approx(
        [g.log_likelihood for g in ours], abs=1e-3
    )


def test_a_greedy_batch_of_prompts_of_any_length_is_decoded_as_alone():
    alone, together = answers("hf_generate", GREEDY), answers("hf_generate", GREEDY, rows=4)
    assert [g.tokens for g in together] == [g.tokens for g in alone]
    assert [len(g.steps) for g in together] == [len(g.tokens) for g in together]


@pytest.mark.parametrize("name", NAMES)
def test_warm_answers_hang_on_seed_and_prompt_alone(name):
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    first = {g.prompt_id: g.tokens for g in answers(name, WARM)}
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's draws are touched"
    again = {g.prompt_id: g.tokens for g in answers(name, WARM, REQUESTS[::-1])}
    assert again == first
    assert {g.prompt_id: g.tokens for g in answers(name, WARM, seed=1)} != first
    twins = [Request(each, (5, 9), 20) for each in "ab"]
    one, other = answers(name, SamplingSettings(temperature=3.0), twins)
    assert one.tokens != other.tokens, "equal prompts have draws of their own"


ZEROS = [Request(str(i), (0, 3 + i, 0, 0, 9, 0), 20) for i in range(4)]  # text to the assistant too


@pytest.mark.parametrize(
    ("ours", "theirs", "requests"),
    [
        ("sd", "hf_assisted", REQUESTS),
        ("sd", "hf_assisted", ZEROS),
        ("prompt_lookup", "hf_prompt_lookup", REQUESTS),  # as shipped
    ],
)
def test_calls_accept_what_those_of_our_decoder_do_until_an_answer_ends(ours, theirs, requests):
    compared = 0
    pairs = zip(answers(ours, GREEDY, requests), answers(theirs, GREEDY, requests), strict=True)
    for mine, other in pairs:
        before = len(other.steps) - 1
        for found in (mine, other):
            assert all(step.delivered == step.accepted + 1 for step in found.steps[:before])
        accepted = [step.accepted for step in mine.steps[:before]]
        assert [step.accepted for step in other.steps[:before]] == accepted
        compared += before
    assert compared > 10
    longest = [decoder_settings(name)["drafter"].get("longest") for name in (ours, theirs)]
    assert longest[0] == longest[1]


@pytest.mark.parametrize("name", NAMES)
def test_what_calls_brought_adds_up_to_the_answer(name):
    for settings in (GREEDY, WARM):
        for found in answers(name, settings):
            assert sum(step.accepted + 1 for step in found.steps) == len(found.tokens)
            assert all(0 <= step.accepted <= step.nodes for step in found.steps)
    tau = block_efficiency(answers(name, GREEDY)).value
    assert tau == 1 if name == "hf_generate" else tau > 1.2


def test_steps_follow_from_what_each_pass_found_in_its_cache():
    # A prompt of 5 tokens; 3 proposed, 2 accepted; 3 and 3; 1 proposed, none accepted.
    calls = [TargetPassSize(8, 0), TargetPassSize(4, 7), TargetPassSize(2, 11)]
    steps = build_step_records(calls, 5, list(range(8)), Assistance(draft_tokens=3))
    assert steps == [StepRecord(3, 3, 2, 3), StepRecord(3, 3, 3, 4), StepRecord(1, 1, 0, 1)]
    assert build_step_records(calls, 5, [1, 2], Assistance()) == [StepRecord(0, 0, 0, 1)] * 2


def test_a_models_own_generation_settings_do_not_change_the_law():
    target, _ = tiny_pair("llama")
    plain = answers("hf_generate", GREEDY)
    own = target.module.generation_config
    own.repetition_penalty, own.min_new_tokens = 9.0, 15
    try:
        assert [g.tokens for g in answers("hf_generate", GREEDY)] == [g.tokens for g in plain]
        assert target.module.generation_config is own
    finally:
        own.repetition_penalty, own.min_new_tokens = 1.0, None


def test_padding_rows_of_an_embedding_are_never_drawn():
    target, _ = tiny_pair("llama")
    target.vocab_size = 20
    try:
        requests = [Request(str(i), (1 + i, 2), 12) for i in range(4)]
        hot = SamplingSettings(temperature=50.0)
        found = [t for g in answers("hf_generate", hot, requests) for t in g.tokens]
    finally:
        target.vocab_size = target.embedding_rows
    assert len(found) == 48
    assert max(found) < 20


def test_a_prompts_share_of_the_passes_is_prefill(monkeypatch):
    monkeypatch.setattr(generate, "compute_log_likelihood", lambda *_: -1.0)
    row = GeneratedRow(Request("p", (1, 2), 3), 0, None, finish="length", prompt_s=(1.0, 2.0))
    record = row.make_generation(0.5, 10.0, 4.0, 5.0)
    assert (record.prefill_s, record.decode_s) == (3.5, 7.0)
    assert (record.draft_s, record.target_s) == (3.0, 3.0)


def test_a_first_passes_excess_over_a_mean_later_one_is_the_prompts():
    assert compute_prompt_s(5.0, 6.0, 3) == 3.0
    assert compute_prompt_s(1.0, 6.0, 3) == compute_prompt_s(5.0, 0.0, 0) == 0.0


def test_the_prompts_seconds_are_prefill_and_nothing_is_counted_twice():
    long = [Request("long", tuple(range(50)) * 2, 12)]
    for name in NAMES:
        answers(name, GREEDY, long)
        (found,) = answers(name, GREEDY, long)
        assert found.prefill_s + found.decode_s == pytest.approx(found.latency_s, rel=0.05)
        assert 0 <= found.draft_s + found.target_s <= found.decode_s
        assert found.target_s > 0
        assert (found.draft_s > 0) == (name == "hf_assisted")


def test_progress_hears_of_every_call():
    decoder, heard = built("hf_assisted", tiny_pair("llama"), GREEDY), []
    found = decoder.generate(REQUESTS[:2], 0, lambda calls, tokens: heard.append((calls, tokens)))
    assert heard == [(len(g.steps), len(g.tokens)) for g in found]


def test_it_is_marked_as_another_engine():
    for name in NAMES:
        config = read_decoder(decoder_settings(name))
        assert (config.verifier.mark, config.library) == ("unaudited", "transformers")
        made = built(name, tiny_pair("llama"), GREEDY)
        assert isinstance(made, GenerateDecoder) and made.lossless == "unaudited"
    assert read_decoder(decoder_settings("sd")).library == ""


def test_a_draft_temperature_of_its_own_is_refused():
    settings = SamplingSettings(temperature=1.0, draft_temperature=0.5)
    with pytest.raises(ValueError, match=r"got 0\.5"):
        read_decoder(decoder_settings("hf_assisted"), settings)


def test_what_transformers_refuses_is_told_as_its_refusal(monkeypatch):
    target, draft = tiny_pair("llama")
    padded = copy.deepcopy(draft.module.config)
    padded.vocab_size += 8
    monkeypatch.setattr(draft.module, "config", padded)
    decoder = built("hf_assisted", (target, draft), GREEDY)
    with pytest.raises(ValueError, match=r"transformers' own generate refuses: .*different"):
        decoder.generate(REQUESTS[:1], 0)
