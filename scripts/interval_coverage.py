"""How often the 95% intervals cover what they are about: simulated prompts with known truth.

    python scripts/interval_coverage.py                 # 3,000 simulations per line, some minutes
    python scripts/interval_coverage.py --simulations 300 --out /tmp/coverage.md

A simulated prompt has an answer of lognormal length, cut at the token limit, an acceptance of its
own that leans on the length, and seconds per call that grow with the context. Every interval is
the one that a table prints, by the function that makes it; beside it stands the percentile
bootstrap of the same numbers. With repeats every run has a factor of its own (8% standard
deviation, the same for all decoders of the run) and every decoder of it another (2%).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics.bootstrap import percentile_interval, studentised_interval
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import rate_ratio_interval, ratio_interval

OUT = Path(__file__).resolve().parents[1] / "results/benchmarks/interval-coverage.md"
SIGMAS = (0.4, 0.7, 1.0)
PROMPTS = (12, 50, 100)
TOKEN_LIMIT, MEDIAN_LENGTH, DRAFT_LENGTH = 256, 60, 4
RUN_FACTOR, OWN_FACTOR = 0.08, 0.02
REPEATS = 3

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """What an interval is about.

    Attributes:
        name: for the table.
        columns: of a world, (columns, prompts) or (columns, repeats, prompts).
        interval: the interval as the tables make it.
        value: the quantity from sums (columns, batch).
    """

    name: str
    columns: Callable[[dict[str, Array]], Array]
    interval: Callable[[Array], Interval | None]
    value: Callable[[Array], Array]


def _ratio(sums: Array) -> Array:
    return sums[0] / sums[1]


def _ratio_of_ratios(sums: Array) -> Array:
    return sums[0] / sums[1] / (sums[2] / sums[3])


def _difference(sums: Array) -> Array:
    return sums[0] / sums[1] - sums[2] / sums[3]


def _stack(*names: str) -> Callable[[dict[str, Array]], Array]:
    return lambda world: np.stack([world[name] for name in names])


QUANTITIES = (
    Quantity("block efficiency", _stack("emitted", "calls"), lambda x: ratio_interval(*x), _ratio),
    Quantity("token rate", _stack("tokens", "seconds"), lambda x: ratio_interval(*x), _ratio),
    Quantity(
        "speed-up",
        _stack("tokens", "seconds", "tokens", "ar_seconds"),
        lambda x: rate_ratio_interval(*x),
        _ratio_of_ratios,
    ),
    Quantity(
        "difference in block efficiency",
        _stack("emitted", "calls", "other_emitted", "other_calls"),
        lambda x: studentised_interval(_difference, x),
        _difference,
    ),
    Quantity(
        "token rate over another's",
        _stack("tokens", "seconds", "tokens", "other_seconds"),
        lambda x: rate_ratio_interval(*x),
        _ratio_of_ratios,
    ),
)
SPEEDUP = QUANTITIES[2]


def world(prompts: int, sigma: float, rng: np.random.Generator) -> dict[str, Array]:
    """Tokens, calls and seconds of two speculative decoders and of plain decoding, per prompt."""

    def noisy(spread: float) -> Array:
        return np.exp(spread * rng.standard_normal(prompts))

    tokens = np.round(MEDIAN_LENGTH * noisy(sigma)).clip(1, TOKEN_LIMIT)
    longer = np.log(tokens / MEDIAN_LENGTH)
    alpha = 1 / (1 + np.exp(-(1 + 0.5 * rng.standard_normal(prompts) + 0.3 * longer)))
    tau = (1 - alpha ** (DRAFT_LENGTH + 1)) / (1 - alpha)
    found = {"tokens": tokens}
    context = 1 + 0.002 * tokens
    for name, share, cost in (("", 1.0, 0.015), ("other_", 0.97, 0.016)):
        own = np.maximum(1, share * tau * noisy(0.06))
        calls = np.ceil(tokens / own)
        found[f"{name}calls"], found[f"{name}emitted"] = calls, calls * own
        found[f"{name}seconds"] = calls * cost * context * noisy(0.05)
    found["ar_seconds"] = tokens * 0.01 * context * noisy(0.05)
    return found


def repeated(once: dict[str, Array], repeats: int, rng: np.random.Generator) -> dict[str, Array]:
    """The same prompts measured several times: (repeats, prompts) each."""
    prompts = len(once["tokens"])
    found = {name: np.tile(values, (repeats, 1)) for name, values in once.items()}
    run = np.exp(RUN_FACTOR * rng.standard_normal((repeats, 1)))
    for name in ("seconds", "ar_seconds"):
        own = np.exp(OWN_FACTOR * rng.standard_normal((repeats, 1)))
        jitter = np.exp(0.02 * rng.standard_normal((repeats, prompts)))
        found[name] = found[name] * run * own * jitter
    return found


def measure(
    quantities: tuple[Quantity, ...], prompts: int, sigma: float, simulations: int, repeats: int
) -> Iterator[str]:
    """A line of the table for each quantity."""
    truths = {}
    large = world(2_000_000, sigma, np.random.default_rng(0))
    for each in quantities:
        truths[each.name] = float(each.value(each.columns(large).sum(axis=1, keepdims=True))[0])
    rng = np.random.default_rng(1)
    ends: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(simulations):
        drawn = world(prompts, sigma, rng)
        if repeats > 1:
            drawn = repeated(drawn, repeats, rng)
        for each in quantities:
            columns = each.columns(drawn)
            blocks = columns if columns.ndim == 2 else columns.sum(axis=1)
            both = (each.interval(columns), percentile_interval(each.value, blocks))
            for method, found in zip(("ours", "percentiles"), both, strict=True):
                assert found and found.low is not None and found.high is not None
                ends.setdefault((each.name, method), []).append((found.low, found.high))
    for each in quantities:
        cells = []
        for method in ("ours", "percentiles"):
            low, high = np.array(ends[each.name, method]).T
            truth = truths[each.name]
            above, below = (low > truth).mean(), (high < truth).mean()
            width = np.median(high - low) / abs(truth)
            cells += [f"{1 - above - below:.3f}", f"{above:.3f}", f"{below:.3f}", f"{width:.3f}"]
        head = f"{each.name} | {repeats} | {sigma} | {prompts}"
        yield f"| {head} | {' | '.join(cells)} |"


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=OUT)
    wanted = parser.parse_args()
    lines = [
        f"Coverage of 95% intervals, {wanted.simulations} simulations per line "
        "(`python scripts/interval_coverage.py`).",
        "",
        "*misses above*: the whole interval lies above the truth. *width*: median, as a share of "
        "the truth. A difference's width is a share of that difference.",
        "",
        "| quantity | repeats | sigma of log length | prompts | coverage | misses above "
        "| misses below | width | percentiles: coverage | above | below | width |",
        "| --- " + "| ---: " * 11 + "|",
    ]
    print("\n".join(lines), flush=True)
    for repeats, quantities in ((1, QUANTITIES), (REPEATS, (SPEEDUP,))):
        for sigma in SIGMAS:
            for prompts in PROMPTS:
                for line in measure(quantities, prompts, sigma, wanted.simulations, repeats):
                    print(line, flush=True)
                    lines.append(line)
    wanted.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
