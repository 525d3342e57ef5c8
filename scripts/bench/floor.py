"""What a token costs a CPU at least: the target's matrix-vector products and nothing between them.

The embedded target, float32, batch 1, greedy: every matrix of a pass, the vocabulary's among them,
times one vector, in the layout in which our passes hold the weights. A pass has all of them and
more, so no capture comes below. ``generate``'s step over these products is then the most that any
capture could reach against ``generate``. Part of ``scripts/bench/rounds.py``; alone:
``python scripts/bench/floor.py [--threads 1]``. Milliseconds a token, medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.engine import GREEDY, plain_embedded_pair, theirs
from scripts.family.embedded_pair import decoder, embedded_pair, embedded_requests
from spec_bench.records.types import Request

HEAD = ("threads", "products alone, ms", "our pass, ms", "our step, ms", "generate()'s step, ms",
        "highest ratio")  # fmt: skip
REPEATED = 10  # products of a token in one timing


class Floor(NamedTuple):
    """Milliseconds a token.

    Attributes:
        products_ms: of all matrices with one vector each.
        pass_ms: of our forward pass.
        step_ms: of our decoding, passes included.
        generate_ms: of transformers' ``generate``, its prompt's pass left out.
    """

    products_ms: float
    pass_ms: float
    step_ms: float
    generate_ms: float

    @property
    def highest_ratio(self) -> float:
        """``generate``'s step over ours, if all but the products took no time."""
        return self.generate_ms / self.products_ms


def matrices(module: nn.Module) -> list[Tensor]:
    """What a pass multiplies a token's vectors by, the vocabulary's matrix last."""
    return [part.weight for part in module.modules() if isinstance(part, nn.Linear)]


def products(module: nn.Module) -> Callable[[], None]:
    """One vector through every matrix of a model."""
    pairs = [(torch.randn(1, weight.shape[1]), weight) for weight in matrices(module)]

    @torch.inference_mode()
    def run() -> None:
        for vector, weight in pairs:
            linear(vector, weight)

    return run


def floor(requests: Sequence[Request], rounds: int) -> Floor:
    """Medians over rounds; in each every side runs once, so that a busy machine meets all alike."""
    models, (plain, _) = embedded_pair(), plain_embedded_pair()
    ours, rival, bare = (
        decoder("ar", models, GREEDY),
        theirs(plain, None),
        products(models[0].module),
    )
    found: list[Floor] = []
    for number in range(rounds + 1):  # the first warms up
        request = requests[number % len(requests)]
        products_s = _seconds(lambda: [bare() for _ in range(REPEATED)]) / REPEATED
        answer = ours.generate([request], 0)[0]
        new = len(answer.tokens)
        # One token alone takes the prompt's pass.
        first = Request(request.prompt_id, request.prompt_ids, 1)
        generate_s = _seconds(lambda asked=request: rival(asked)) - _seconds(  # type: ignore[misc]
            lambda asked=first: rival(asked)  # type: ignore[misc]
        )
        seconds = products_s, answer.target_s / new, answer.decode_s / new, generate_s / (new - 1)
        found.append(Floor(*(1e3 * each for each in seconds)))
    return Floor(*(statistics.median(side) for side in zip(*found[1:], strict=True)))


def _seconds(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def line(threads: int, found: Floor) -> list[str]:
    """A line of the table."""
    return [str(threads), *(f"{ms:.2f}" for ms in found), f"{found.highest_ratio:.2f}"]


def main() -> None:
    """Measures and prints one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--new-tokens", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    requests = embedded_requests(options.prompts, options.new_tokens)
    print(" | ".join(HEAD))
    print(" | ".join(line(options.threads, floor(requests, options.rounds))))


if __name__ == "__main__":
    main()
