"""What a row of beams delivers, on beams that can be drawn."""

import torch

from spec_bench.decode.beam_step import Beam, BeamRow
from spec_bench.records.types import Request, StepRecord

STOP = 9


def two_beams():
    """After prompt 1 2: beam 3, stop, padding; beam 4, 5, 6. Node 0 is the last prompt token."""
    row = BeamRow.start(Request("p", (1, 2), 3, (STOP,)), torch.Generator())
    row.tokens = [2, 3, 4, STOP, 5, 0, 6]
    row.parents = [-1, 0, 0, 1, 2, 3, 4]
    row.beams = [Beam(3, 0, -2.0, 2, True), Beam(4, 6, -9.0, 3, False)]
    row.steps = [StepRecord(4, 2, 2, 3), StepRecord(2, 1, 0, 1)]
    return row


def test_a_beam_that_stopped_delivers_nothing_behind_its_stop_token():
    row = two_beams()
    row.deliver(length_penalty=1.0)
    assert row.answer == (3, STOP)
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
    assert row.answer == (3, STOP)
