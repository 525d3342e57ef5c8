"""What one call of the target brings a row: counted whole, delivered up to its end."""

import torch

from spec_bench.decode.rows import Row
from spec_bench.records.types import Request


def row(limit, stop=()):
    request = Request("p", (1, 2), limit, stop)
    return Row(request, torch.Generator(), [1, 2])


def test_accepted_counts_what_the_call_emitted_and_delivered_what_the_limit_left():
    short = row(3)
    short.commit([7, 8, 9, 7, 8], [-1.0] * 5, nodes=6, depth=4)
    (step,) = short.steps
    assert (step.accepted, step.delivered) == (4, 3)
    assert short.delivered == [7, 8, 9]
    assert (short.finish, short.log_likelihood) == ("length", -3.0)


def test_a_stop_token_is_the_last_that_is_delivered_and_the_block_counts_whole():
    stopped = row(10, (8,))
    stopped.commit([7, 8, 9], [-1.0] * 3, nodes=4, depth=2)
    (step,) = stopped.steps
    assert (step.accepted, step.delivered) == (2, 2)
    assert (stopped.delivered, stopped.finish) == ([7, 8], "stop")
