"""Beam decoders: beam search equals ``generate``; caches, widths, ties, what a row delivers."""

from dataclasses import replace

import pytest
import torch

from spec_bench.core.draws import row_generator
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_step import Beam, BeamRow, Parents
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.records.types import Request, StepRecord
from tests.families import ARCHITECTURES, decoder_settings, random_requests, tiny_pair

REQUESTS = random_requests(8, 16)
WARM = SamplingSettings(temperature=1.5, top_p=0.95, probability_dtype="float64")
STOP = (5, 17, 40)
BEAMS = [("beam_sampling", "3"), ("dsbd", "4x2@0.5"), ("dsbd", "3x3@0"), ("dsbd_one_cache", None)]


def answers(name, spec, *, architecture="llama", requests=REQUESTS, batch=1, settings=WARM):
    target, draft = tiny_pair(architecture, torch.float64)
    decoder = build_decoder(decoder_settings(name, spec), target, [draft], settings, rows=batch)
    return [
        generation
        for start in range(0, len(requests), batch)
        for generation in decoder.generate(requests[start : start + batch], seed=5)
    ]


@pytest.mark.parametrize("stop_ids", [(), STOP], ids=["no stop", "stop"])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_beam_search_equals_generate(architecture, width, stop_ids):
    target, _ = tiny_pair(architecture, torch.float64)
    requests = [replace(request, stop_ids=stop_ids) for request in REQUESTS[::3]]
    ours = answers("beam_search", str(width), architecture=architecture, requests=requests)
    for request, answer in zip(requests, ours, strict=True):
        ids = torch.tensor([request.prompt_ids])
        theirs = target.module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=width,
            max_new_tokens=request.max_new_tokens,
            eos_token_id=list(stop_ids) or None,
            pad_token_id=0,
        )[0, ids.shape[1] :].tolist()
        assert list(answer.tokens) == theirs


@pytest.mark.parametrize(("name", "spec"), BEAMS)
@pytest.mark.parametrize("architecture", ["llama", "opt"])
def test_the_likelihood_of_an_answer_is_that_of_a_plain_pass(architecture, name, spec):
    """Holds only if every node of the trie saw its own ancestors and no one else's."""
    target, _ = tiny_pair(architecture, torch.float64)
    for request, answer in zip(
        REQUESTS, answers(name, spec, architecture=architecture), strict=True
    ):
        ids = torch.tensor([[*request.prompt_ids, *answer.tokens]])
        with torch.inference_mode():
            log_p = target.module(input_ids=ids).logits[0].log_softmax(dim=-1)
        at = torch.arange(len(request.prompt_ids) - 1, ids.shape[1] - 1)
        expected = log_p[at, ids[0, len(request.prompt_ids) :]].sum().item()
        assert answer.log_likelihood == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("name", "spec"), [*BEAMS, ("beam_search", "3")])
def test_tokens_do_not_depend_on_the_batch_or_the_order(name, spec):
    requests = [replace(request, stop_ids=STOP) for request in REQUESTS]
    alone = {g.prompt_id: g.tokens for g in answers(name, spec, requests=requests)}
    batched = answers(name, spec, requests=requests, batch=3)
    assert {g.prompt_id: g.tokens for g in batched} == alone
    backwards = answers(name, spec, requests=requests[::-1], batch=4)
    assert {g.prompt_id: g.tokens for g in backwards} == alone


def test_one_beam_is_sampled_as_autoregressive_decoding_samples():
    beam = answers("beam_sampling", "1")
    assert all(step.widths == (1,) for g in beam for step in g.steps)
    assert all(len(g.steps) == len(g.tokens) for g in beam)


def test_more_beams_find_likelier_answers():
    one, four = answers("beam_sampling", "1"), answers("beam_sampling", "4")
    assert sum(g.log_likelihood for g in four) > sum(g.log_likelihood for g in one)


def test_widths_are_recorded_and_bounded():
    generations = answers("dsbd", "4x2@0.9")
    steps = [step for generation in generations for step in generation.steps]
    assert all(1 <= width <= 4 for step in steps for width in step.widths)
    assert all(len(step.widths) in (step.accepted, step.accepted + 1) for step in steps)
    assert len({width for step in steps for width in step.widths}) > 1
    wide = answers("dsbd", "4x2@0")
    assert {width for g in wide for step in g.steps for width in step.widths} == {4}


def test_a_draft_layer_saves_target_calls():
    plain, drafted = answers("beam_sampling", "4"), answers("dsbd", "4x2@0.5")
    calls = [sum(len(g.steps) for g in generations) for generations in (plain, drafted)]
    assert calls[1] < 0.8 * calls[0]


def test_with_one_cache_the_slots_are_those_of_speculative_decoding():
    target, draft = tiny_pair("llama")
    sizes = {}
    for name, spec in (("sd", "3"), ("dsbd_one_cache", "4x2@0.9"), ("dsbd", "4x2@0.9")):
        decoder = build_decoder(decoder_settings(name, spec), target, [draft], WARM)
        sizes[name] = decoder.cache_bytes(200, 64)
    assert abs(sizes["dsbd_one_cache"] / sizes["sd"] - 1) < 0.05
    assert sizes["dsbd"] > 1.5 * sizes["sd"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tree": {"least": 9}}, "tree.least must be at most tree.width = 4, got 9"),
        ({"tree": {"threshold": 1.5}}, "tree.threshold must be a number from 0 to 1, got 1.5"),
        ({"verifier": {"rule": "k_seq"}}, "verifier.one_cache does not belong to rule 'k_seq'"),
        ({"verifier": {"one_cache": "no"}}, "one_cache must be true or false, got 'no'"),
        ({"verifier": {"epsilon": 1}}, "verifier.epsilon does not belong"),
        ({"drafter": {"drafts": 2}}, "uses 1 draft models, got 2"),
    ],
)
def test_what_cannot_work_is_refused_by_name(change, message):
    decoder = decoder_settings("dsbd")
    for part, values in change.items():
        decoder[part] = {**decoder[part], **values}
    with pytest.raises(ValueError, match=message):
        read_decoder(decoder)


END = 9


def two_beams():
    """After prompt 1 2: beam 3, stop, padding; beam 4, 5, 6. Node 0 is the last prompt token."""
    row = BeamRow.start(Request("p", (1, 2), 3, (END,)), torch.Generator())
    row.tokens = [2, 3, 4, END, 5, 0, 6]
    row.parents = [-1, 0, 0, 1, 2, 3, 4]
    row.beams = [Beam(3, 0, -2.0, 2, True), Beam(4, 6, -9.0, 3, False)]
    row.steps = [StepRecord(4, 2, 2, 3), StepRecord(2, 1, 0, 1)]
    return row


def test_a_beam_that_stopped_delivers_nothing_behind_its_stop_token():
    row = two_beams()
    row.deliver(length_penalty=1.0)
    assert row.answer == (3, END)
    assert row.finish == "stop"
    assert [step.delivered for step in row.steps] == [2, 0]


def test_the_best_beam_is_the_best_by_log_likelihood_over_length_to_the_penalty():
    row = two_beams()
    row.beams = [Beam(3, 0, -2.0, 2, True), Beam(4, 6, -2.7, 3, False)]
    row.deliver(length_penalty=1.0)  # -1.0 against -0.9 a token
    assert row.answer == (4, 5, 6)
    row = two_beams()
    row.beams = [Beam(3, 0, -2.0, 2, True), Beam(4, 6, -2.7, 3, False)]
    row.deliver(length_penalty=0.0)
    assert row.answer == (3, END)


TEN = random_requests(8, 10)


def parents(tokens, first):
    """Beams of one row, equally likely, none stopped."""
    count = len(tokens)
    return Parents(
        torch.tensor([tokens]),
        torch.zeros((1, count), dtype=torch.float64),
        torch.zeros((1, count), dtype=torch.long),
        torch.zeros((1, count), dtype=torch.bool),
        torch.tensor([[-1]]),
        torch.tensor([first]),
    )


def test_what_follows_the_same_text_is_the_same_to_the_last_bit():
    logits = torch.randn((1, 1, 7), generator=torch.Generator().manual_seed(0)).repeat(1, 3, 1)
    logits[:, 2] += 1e-6 * torch.arange(7)
    apart, alike = parents([4, 5, 4], [0, 1, 2]), parents([4, 5, 4], [0, 1, 0])
    assert not torch.equal(apart.log_probs(logits)[0, 0], apart.log_probs(logits)[0, 2])
    assert torch.equal(alike.log_probs(logits)[0, 0], alike.log_probs(logits)[0, 2])
    assert torch.equal(alike.log_probs(logits)[0, :2], apart.log_probs(logits)[0, :2])


def test_children_of_the_same_text_by_the_same_token_have_the_same_text():
    beams, log_p = parents([4, 5, 4], [0, 1, 0]), torch.zeros((1, 3, 7))
    cells = torch.tensor([[2 * 7 + 3, 1 * 7 + 3, 0 * 7 + 3, 0 * 7 + 4, 2 * 7 + 4]])
    assert beams.children(cells, log_p).first.tolist() == [[0, 1, 0, 3, 3]]


def test_a_row_knows_which_of_its_beams_have_the_same_text():
    row = BeamRow.start(Request("x", (1, 2), 8), row_generator(0, "x", torch.device("cpu")))
    row.tokens, row.parents = [2, 5, 5, 6, 6, 7, 6], [-1, 0, 0, 1, 2, 1, 1]
    row.beams = row.beams * 4  # the last four nodes: 5 6, 5 6, 5 7, 5 6
    assert row.first_of_text() == [0, 0, 2, 0]


@pytest.mark.parametrize("name", ["beam_sampling", "dsbd"])
@pytest.mark.parametrize(
    "settings", [SamplingSettings(temperature=0), SamplingSettings(temperature=0.3, top_p=0.8)]
)
def test_in_float32_too_beams_do_not_depend_on_the_batch(name, settings):
    found = []
    for rows in (1, 4):
        target, draft = tiny_pair("llama", torch.float32)
        decoder = build_decoder(decoder_settings(name), target, [draft], settings, rows)
        batches = [TEN[start : start + rows] for start in range(0, len(TEN), rows)]
        found.append([each for batch in batches for each in decoder.generate(batch, 3)])
    alone, together = found
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert [each.steps for each in together] == [each.steps for each in alone]
