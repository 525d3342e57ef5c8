"""Beam decoders: beam search equals ``generate``; caches, widths, ties, what a row delivers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from spec_bench.core.draws import make_row_generator
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.beam_step import Beam, BeamRow, ParentBeams
from spec_bench.records.types import Request, StepRecord
from tests.families import ARCHITECTURES, built, random_requests, tiny_pair
from tests.kinds import generated, log_likelihood

REQUESTS = random_requests(8, 16)
WARM = SamplingSettings(temperature=1.5, top_p=0.95, probability_dtype="float64")
STOPPED = [replace(request, stop_ids=(5, 17, 40)) for request in REQUESTS]
BEAMS = [("beam_sampling", "3"), ("dsbd", "4x2@0.5"), ("dsbd", "3x3@0"), ("dsbd_one_cache", None)]


def answers(name, spec, *, architecture="llama", requests=REQUESTS, batch=1, settings=WARM):
    decoder = built(name, tiny_pair(architecture, torch.float64), settings, batch, spec)
    batches = (requests[start : start + batch] for start in range(0, len(requests), batch))
    return [answer for each in batches for answer in decoder.generate(each, seed=5)]


@pytest.mark.parametrize("requests", [REQUESTS, STOPPED], ids=["no stop", "stop"])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_beam_search_equals_generate(architecture, width, requests):
    asked = requests[::3]
    ours = answers("beam_search", str(width), architecture=architecture, requests=asked)
    module = tiny_pair(architecture, torch.float64)[0].module
    assert [list(each.tokens) for each in ours] == generated(module, asked, num_beams=width)


@pytest.mark.parametrize(("name", "spec"), BEAMS)
@pytest.mark.parametrize("architecture", ["llama", "opt"])
def test_the_likelihood_of_an_answer_is_that_of_a_plain_pass(architecture, name, spec):
    module = tiny_pair(architecture, torch.float64)[0].module
    found = answers(name, spec, architecture=architecture)
    for request, answer in zip(REQUESTS, found, strict=True):
        expected = log_likelihood(module, request, answer.tokens)
        assert answer.log_likelihood == pytest.approx(expected, abs=1e-6)


def noted(_, index, row, moves):
    row.moves = moves


@pytest.mark.parametrize("waiting", [False, True], ids=["at once", "as on a GPU"])
@pytest.mark.parametrize(("name", "spec"), [*BEAMS, ("beam_search", "3")])
def test_tokens_do_not_depend_on_the_batch_or_the_order(name, spec, waiting, monkeypatch):
    def told(asked, batch):
        found = answers(name, spec, requests=asked, batch=batch)
        return {each.prompt_id: each.tokens for each in found}

    alone = told(STOPPED, 1)
    if waiting:  # a device moves a row's nodes in the caches when the next iteration begins
        monkeypatch.setattr(BeamDecoder, "_apply_or_queue_moves", noted)
    assert told(STOPPED, 3) == told(STOPPED[::-1], 4) == alone


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
    sd, one, own = (
        built(name, tiny_pair("llama"), WARM, spec=spec).cache_bytes_per_row(200, 64)
        for name, spec in (("sd", "3"), ("dsbd_one_cache", "4x2@0.9"), ("dsbd", "4x2@0.9"))
    )
    assert abs(one / sd - 1) < 0.05
    assert own > 1.5 * sd


END = 9


def two_beams():
    """After prompt 1 2: beam 3, stop, padding; beam 4, 5, 6. Node 0 is the last prompt token."""
    row = BeamRow.start(Request("p", (1, 2), 3, (END,)), torch.Generator())
    row.trie_tokens = [2, 3, 4, END, 5, 0, 6]
    row.trie_parents = [-1, 0, 0, 1, 2, 3, 4]
    row.beams = [Beam(3, 0, -2.0, 2, True), Beam(4, 6, -9.0, 3, False)]
    row.steps = [StepRecord(4, 2, 2, 3), StepRecord(2, 1, 0, 1)]
    return row


def test_a_beam_that_stopped_delivers_nothing_behind_its_stop_token():
    row = two_beams()
    row.end_with_best_beam(length_penalty=1.0)
    assert (row.answer, row.finish) == ((3, END), "stop")
    assert row.log_likelihood == -2.0  # a whole answer's
    assert [step.delivered for step in row.steps] == [2, 0]


@pytest.mark.parametrize(("penalty", "answer"), [(1.0, (4, 5, 6)), (0.0, (3, END))])
def test_the_best_beam_is_the_best_by_log_likelihood_over_length_to_the_penalty(penalty, answer):
    row = two_beams()
    row.beams = [Beam(3, 0, -2.0, 2, True), Beam(4, 6, -2.7, 3, False)]
    row.end_with_best_beam(length_penalty=penalty)  # -1.0 against -0.9 a token
    assert row.answer == answer


def test_an_answer_that_a_text_cut_has_no_likelihood():
    for cut, likelihood in ((None, -2.0), (3, -2.0), (1, None)):
        row = two_beams()
        row.request = SimpleNamespace(count_tokens_to_end=lambda _, cut=cut: cut)
        row.end_with_answer((3, 4, 5), -2.0)
        assert (row.answer, row.log_likelihood) == ((3, 4, 5)[:cut], likelihood)
        assert row.finish == ("length" if cut is None else "stop")


def parents(tokens, first):
    """Beams of one row, equally likely, none stopped."""
    count = len(tokens)
    zeros = (
        torch.zeros((1, count), dtype=dtype) for dtype in (torch.float64, torch.long, torch.bool)
    )
    return ParentBeams(torch.tensor([tokens]), *zeros, torch.tensor([[-1]]), torch.tensor([first]))


def test_what_follows_the_same_text_is_the_same_to_the_last_bit():
    logits = torch.randn((1, 1, 7), generator=torch.Generator().manual_seed(0)).repeat(1, 3, 1)
    logits[:, 2] += 1e-6 * torch.arange(7)
    apart, alike = parents([4, 5, 4], [0, 1, 2]), parents([4, 5, 4], [0, 1, 0])
    assert not torch.equal(apart.raw_log_probs(logits)[0, 0], apart.raw_log_probs(logits)[0, 2])
    assert torch.equal(alike.raw_log_probs(logits)[0, 0], alike.raw_log_probs(logits)[0, 2])
    assert torch.equal(alike.raw_log_probs(logits)[0, :2], apart.raw_log_probs(logits)[0, :2])


def test_children_of_the_same_text_by_the_same_token_have_the_same_text():
    beams, log_p = parents([4, 5, 4], [0, 1, 0]), torch.zeros((1, 3, 7))
    cells = torch.tensor([[2 * 7 + 3, 1 * 7 + 3, 0 * 7 + 3, 0 * 7 + 4, 2 * 7 + 4]])
    assert beams.children(cells, log_p).first.tolist() == [[0, 1, 0, 3, 3]]


def test_a_beam_that_has_stopped_grows_no_longer():
    beams = replace(parents([4, 5], [0, 1]), stopped=torch.tensor([[True, False]]))
    made = beams.children(torch.tensor([[4, 7 + 6]]), torch.zeros((1, 2, 7)))
    assert (made.length.tolist(), made.stopped.tolist()) == ([[0, 1]], [[True, False]])


@pytest.mark.parametrize(
    ("candidates", "pool", "answer"),
    [
        # The end is third of what two beams go on with: it is no answer.
        ([(-1.0, 5), (-1.1, 6), (-1.2, END)], [], ()),
        # Among the two best it waits for a second answer, which may be better.
        ([(-1.0, 5), (-1.1, END), (-1.2, 6)], [(END,)], ()),
        # What goes on is no better than the worst of two answers: the best of them stands.
        ([(-1.0, END), (-1.2, END - 1), (-1.2, 5)], [(END,), (END - 1,)], (END,)),
    ],
)
def test_answers_that_have_ended_wait_for_better_ones(candidates, pool, answer):
    decoder = built("beam_search", tiny_pair("llama"), spec="2")
    request = Request("p", (1, 2), 9, (END, END - 1))
    (row,) = decoder.prefill_requests([request], 0)
    decoder._select_beams(0, row, candidates, 60)
    assert [tokens for _, _, tokens in row.pool] == pool
    assert row.answer == answer and bool(row.finish) == bool(answer)


def test_a_row_knows_which_of_its_beams_have_the_same_text():
    row = BeamRow.start(Request("x", (1, 2), 8), make_row_generator(0, "x", torch.device("cpu")))
    row.trie_tokens, row.trie_parents = [2, 5, 5, 6, 6, 7, 6], [-1, 0, 0, 1, 2, 1, 1]
    row.beams = row.beams * 4  # the last four nodes: 5 6, 5 6, 5 7, 5 6
    assert row.find_first_equal_beams() == [0, 0, 2, 0]


@pytest.mark.parametrize("name", ["beam_sampling", "dsbd"])
@pytest.mark.parametrize(
    "settings", [SamplingSettings(temperature=0), SamplingSettings(temperature=0.3, top_p=0.8)]
)
def test_in_float32_too_beams_do_not_depend_on_the_batch(name, settings):
    requests = random_requests(8, 10)
    alone, together = (
        [
            (each.tokens, each.steps)
            for start in range(0, 8, rows)
            for each in decoder.generate(requests[start : start + rows], 3)
        ]
        for rows in (1, 4)
        for decoder in [built(name, tiny_pair("llama"), settings, rows)]
    )
    assert together == alone
