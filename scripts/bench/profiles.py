"""Where an iteration's time goes: ``make profile``.

Milliseconds per target call of each decoder, on the embedded pair or on random OPT-125M-sized
models: draft passes, growing the tree around them, the target's pass, verification (sampling
included) with its one transfer, commit, and what is left for the loop itself. Sections are timed by
wrapping the decoder's own parts, with the device synchronised between them, so the sum is a little
above an undisturbed run.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.engine import PAIRS, random_requests
from scripts.family.embedded_pair import SPECS, decoder, embedded_requests
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.decoder import Decoder
from spec_bench.engine.model import wait_for_device
from spec_bench.engine.plain import COMPILE
from spec_bench.records.types import Request

SECTIONS = ("draft passes", "growing", "target pass", "verification", "commit", "loop")


class Sections:
    """Seconds by section, of one decoder whose parts are wrapped.

    Args:
        built: the decoder; its caches are reserved already, so that its parts exist.
    """

    def __init__(self, built: Decoder) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._build_decoder, self._device = built, built.target.device
        kind = type(built.policy)  # frozen, so the class is what can be changed
        self._wrap(kind, "grow_tree", "proposing")
        self._wrap(built._scorer, "score", "target pass")
        self._wrap(built, "_judge", "verification")
        self._wrap(built, "_commit", "commit")
        self._wrap(built, "step", "step")

    def _wrap(self, owner: Any, name: str, section: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            wait_for_device(self._device)
            start_s = time.perf_counter()
            result = inner(*args, **kwargs)
            wait_for_device(self._device)
            self.seconds[section] += time.perf_counter() - start_s
            return result

        setattr(owner, name, timed)

    def table(self, draft_s: float) -> dict[str, float]:
        """Seconds of each of ``SECTIONS``; ``draft_s``: inside draft forward passes."""
        found = self.seconds
        parts = found["proposing"] + found["target pass"] + found["verification"] + found["commit"]
        return {
            "draft passes": draft_s,
            "growing": found["proposing"] - draft_s,
            "target pass": found["target pass"],
            "verification": found["verification"],
            "commit": found["commit"],
            "loop": found["step"] - parts,
        }


def profile(built: Decoder, requests: list[Request]) -> dict[str, float]:
    """Milliseconds per target call of each section, the first request left out as warm-up."""
    built.generate(requests[:1], seed=0)
    sections = Sections(built)
    generations = [built.generate([request], seed=0)[0] for request in requests[1:]]
    calls = sum(len(generation.steps) for generation in generations)
    draft_s = sum(generation.draft_s for generation in generations)
    return {name: 1e3 * value / calls for name, value in sections.table(draft_s).items()}


def main() -> None:
    """Prints one table per pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=["embedded"])
    parser.add_argument("--decoders", nargs="+", choices=SPECS, default=list(SPECS))
    parser.add_argument("--compile", choices=COMPILE, default="none")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for pair in options.pairs:
        models = PAIRS[pair](options.compile)
        vocab = models[0].vocab_size
        requests = (
            embedded_requests(options.prompts + 1, options.new_tokens)
            if pair == "embedded"
            else random_requests(options.prompts + 1, options.new_tokens, vocab)
        )
        table = Table("decoder", "spec", *SECTIONS, "sum", title=f"{pair}: ms per target call")
        for name in options.decoders:
            found = profile(decoder(name, models, SamplingSettings(1.0)), requests)
            cells = [f"{value:.2f}" for value in (*found.values(), sum(found.values()))]
            table.add_row(name, SPECS[name], *cells)
        Console(width=130).print(table)


if __name__ == "__main__":
    main()
