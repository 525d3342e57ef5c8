"""Two processes that see different logits decode the first one's tokens, and none waits."""

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as started

from spec_bench.core.warp import SamplingSettings
from spec_bench.engine.model import ForwardOutput
from tests.families import GREEDY, built, pair_of, random_requests

DISTURBED = 0.1  # a hundred times what another order of a sum could do
TREES = ["sd", "rsd_s", "mcsd", "sd_dynamic", "dyspec", "opt_tree", "traversal_paths", "eagle3"]
BEAMS = ["dsbd", "beam_search"]
WARM = SamplingSettings(temperature=1.0)


def disturb(model, generator):
    """Adds noise to every logit, as another order of a sum does."""
    forward = model.forward

    def noisy(*given, **named):
        output = forward(*given, **named)
        noise = torch.randn(output.logits.shape, generator=generator) * DISTURBED
        return ForwardOutput(output.logits + noise, output.hidden)

    model.forward = noisy


def tokens(name, disturbed):
    """What a decoder answers to six prompts, three at a time."""
    pair = pair_of("none", dtype=torch.float32)
    if disturbed:
        generator = torch.Generator().manual_seed(7)
        for model in pair:
            disturb(model, generator)
    decoder = built(name, pair, GREEDY if name == "beam_search" else WARM, 3)
    return [answer.tokens for answer in decoder.generate(random_requests(6, 24), seed=0)]


def work(rank, port, names, folder):
    """One process; the second is disturbed."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {name: tokens(name, disturbed=rank == 1) for name in names}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def together(names, folder):
    """What each of two processes delivered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started.spawn(work, (port, names, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [TREES, BEAMS], ids=["trees", "beams"])
def test_both_deliver_what_the_first_delivers_alone(names, tmp_path):
    alone = {name: tokens(name, disturbed=False) for name in names}
    first, second = together(names, tmp_path)
    assert first == second == alone


def test_disturbed_logits_alone_give_other_tokens():
    """Else the test above would say nothing."""
    assert tokens("rsd_s", disturbed=True) != tokens("rsd_s", disturbed=False)
