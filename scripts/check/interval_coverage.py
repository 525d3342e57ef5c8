"""How often the 95% intervals cover what they are about: simulated prompts with known truth.

    python scripts/check/interval_coverage.py        # 2,000 simulations per line, some minutes
    python scripts/check/interval_coverage.py --simulations 300 --out /tmp/coverage.md

A simulated prompt has an answer of lognormal length (sigma 0.7), cut at the token limit, an
acceptance of its own that leans on the length, seconds per call that grow with the context, and
answers that are right or wrong, or as good as a draw from a Beta distribution. Every interval is
the one that a table or a claim prints, by the function that makes it. With repeats every run has a
factor of its own (8% standard deviation, the same for all decoders of the run) and every decoder of
it another (2%). What is drawn for Pearson's r are heads, not prompts.

Two more tables (``--rare`` makes them alone and keeps the first): prompts of which most show
nothing (a look-up of ten tokens that hits on 10% or 5% of them, some tokens in a fifth of a hit
prompt's calls; one prompt in twelve that copies all of its text, heavy; and texts whose tau is
skewed, all of them above 1), and speed-ups of two seeds that are pooled.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.metrics.interval import FEWEST, Interval, clip_or_drop_wide_ends
from spec_bench.metrics.intervals import (
    median_interval,
    rate_ratio_interval,
    ratio_interval,
    ratio_intervals,
    widen_to_tau_width,
)
from spec_bench.metrics.metric import PromptSums, compute_interval
from spec_bench.metrics.quality import Bleu
from spec_bench.metrics.resampling import bootstrap_interval
from spec_bench.metrics.score_intervals import bounded_score_interval, mean_interval
from spec_bench.report.claims.contrast import (
    FEWEST_PICKED,
    RELATIVE,
    compute_fisher_interval,
    compute_mean_difference,
)

OUT = Path(__file__).resolve().parents[2] / "results/benchmarks/interval-coverage.md"
PROMPTS = (5, 8, 12, 50)
SIGMA, TOKEN_LIMIT, MEDIAN_LENGTH, DRAFT_LENGTH = 0.7, 256, 60, 4
RUN_FACTOR, OWN_FACTOR = 0.08, 0.02
REPEATS = 3
LARGE = 1_000_000  # prompts that a truth is taken from
PICKED = 5
FEW_PROMPTS = (5, 12, 40)
LOOKED_UP = 10  # tokens a look-up guesses
CLOSE = 0.02  # a claim of closeness to plain decoding
_RARE = "Prompts of which most show nothing"

Array = NDArray[np.float64]
World = dict[str, Array]


@dataclass(frozen=True)
class Quantity:
    """What an interval is about."""

    name: str  # for the table
    # which numbers of a world, its columns: (columns, prompts) or, with repeats, (columns, repeats,
    # prompts)
    inputs: tuple[str, ...]
    interval: Callable[[Array], Interval | None]  # the interval as it is printed
    value: Callable[[Array], float]  # the quantity itself, of many prompts' columns
    fewest: int = FEWEST  # prompts that have an interval
    repeats: int = 1  # how often prompts are measured


def _ratio(columns: Array) -> float:
    above, below = columns.sum(axis=1)
    return float(above / below)


def _ratio_of_ratios(columns: Array) -> float:
    return _ratio(columns[:2]) / _ratio(columns[2:])


def _gap(columns: Array) -> float:
    return _ratio(columns[:2]) - _ratio(columns[2:])


def _printed(name: str, found: Interval | None) -> Interval | None:
    return found and clip_or_drop_wide_ends(name, found)


def _rate(name: str, above: str, below: str) -> Quantity:
    """A ratio of sums in a table's column."""
    title = {"energy_j_per_token": "energy per token"}.get(name, name.replace("_", " "))
    return Quantity(
        title, (above, below), lambda x: _printed(name, ratio_interval(*x)), _ratio
    )  # fmt: skip


def _speedup(repeats: int) -> Quantity:
    inputs = ("tokens", "seconds", "tokens", "ar_seconds")
    return Quantity(
        "speed-up", inputs, lambda x: _printed("speedup", rate_ratio_interval(*x)),
        _ratio_of_ratios, repeats=repeats,
    )  # fmt: skip


def _mean(title: str, name: str) -> Quantity:
    """A mean score in a table's column."""
    return Quantity(title, (name,), lambda x: mean_interval(x[0].tolist()), lambda x: x[0].mean())


def _compared(
    title: str,
    metric: str,
    inputs: tuple[str, ...],
    value: Callable[[Array], float],
    fewest: int = FEWEST,
) -> Quantity:
    """A difference as a claim has it: of each cell two inputs, the last cell on the right."""
    rows = [{"decoder": "sd", "spec": str(place)} for place in range(len(inputs) // 2)]
    contrast = (rows[:-1], rows[-1:])

    def interval(columns: Array) -> Interval | None:
        table = columns.reshape(len(rows), -1, 1, columns.shape[-1])
        found = compute_mean_difference([contrast], table, metric, metric in RELATIVE)
        return (
            None
            if found is None
            else Interval(found.value, *(found.ends_on_value_scale or (None, None)))
        )

    return Quantity(title, inputs, interval, value, fewest)


def _perplexity(columns: Array) -> Interval | None:
    found = ratio_interval(*columns)
    return _printed("perplexity", found and found.map(exp))


def _pearson(columns: Array) -> Interval | None:
    r = float(np.corrcoef(columns)[0, 1])
    return Interval(r, *compute_fisher_interval(r, columns.shape[1])[:2])


def _medians(columns: Array) -> Array:
    tokens, seconds, _, ar_seconds = columns
    return (ar_seconds / tokens) / (seconds / tokens)


BLEU = tuple(f"bleu_{place}" for place in range(10))
TIMED = ("tokens", "seconds", "tokens", "ar_seconds")
OTHER = ("tokens", "seconds", "tokens", "other_seconds")
PICKS = tuple(name for place in range(PICKED + 1) for name in ("tokens", f"equal_{place}"))
QUANTITIES = (
    _rate("block_efficiency", "emitted", "calls"),
    _rate("acceptance_rate", "accepted", "reached"),
    _rate("token_rate", "tokens", "seconds"),
    _speedup(repeats=1),
    Quantity(
        "median speed-up", TIMED,
        lambda x: _printed("speedup_median", median_interval(_medians(x).tolist())),
        lambda x: float(np.median(_medians(x))), fewest=6,
    ),
    Quantity("perplexity", ("nats", "tokens"), _perplexity, lambda x: exp(_ratio(x))),
    _rate("energy_j_per_token", "joules", "tokens"),
    *(_mean(f"exact match, {share:.0%} right", f"right_{share}") for share in (0.1, 0.5, 0.9)),
    _mean("ROUGE-like score", "rouge"),
    Quantity(
        "BLEU", BLEU, lambda x: bounded_score_interval(Bleu.compute_from_sums, x),
        lambda x: float(Bleu.compute_from_sums(x.sum(axis=1, keepdims=True))[0]),
    ),
    _compared(
        "difference in block efficiency", "block_efficiency",
        ("emitted", "calls", "other_emitted", "other_calls"), _gap,
    ),
    _compared("token rate over another's", "token_rate", OTHER, lambda x: _ratio_of_ratios(x) - 1),
    _compared("difference of shares of right answers", "exact_match",
              ("right_0.5", "one", "other_right", "one"), _gap),
    _compared("difference of ROUGE-like scores", "rouge2",
              ("rouge", "one", "other_rouge", "one"), _gap),
    _compared(f"best of {PICKED} equal ones over another", "token_rate", PICKS, lambda x: 0.0,
              FEWEST_PICKED),
    Quantity("Pearson's r (Fisher)", ("accuracy", "head_rate"), _pearson,
             lambda x: float(np.corrcoef(x)[0, 1])),
    _speedup(repeats=REPEATS),
)  # fmt: skip


def world(prompts: int, rng: np.random.Generator) -> World:
    """Everything that is drawn for so many prompts."""

    def noisy(spread: float) -> Array:
        return np.exp(spread * rng.standard_normal(prompts))

    tokens = np.round(MEDIAN_LENGTH * noisy(SIGMA)).clip(1, TOKEN_LIMIT)
    longer = np.log(tokens / MEDIAN_LENGTH)
    alpha = 1 / (1 + np.exp(-(1 + 0.5 * rng.standard_normal(prompts) + 0.3 * longer)))
    tau = (1 - alpha ** (DRAFT_LENGTH + 1)) / (1 - alpha)
    found = {"tokens": tokens, "one": np.ones(prompts)}
    context = 1 + 0.002 * tokens
    for name, share, cost in (("", 1.0, 0.015), ("other_", 0.97, 0.016)):
        own = np.maximum(1, share * tau * noisy(0.06))
        calls = np.ceil(tokens / own)
        found[f"{name}calls"], found[f"{name}emitted"] = calls, calls * own
        found[f"{name}seconds"] = calls * cost * context * noisy(0.05)
    reached = np.ceil(found["calls"] * (1 - alpha**DRAFT_LENGTH) / (1 - alpha))
    found["reached"], found["accepted"] = reached, rng.binomial(reached.astype(int), alpha) * 1.0
    found["ar_seconds"] = tokens * 0.01 * context * noisy(0.05)
    found["joules"] = tokens * 0.5 * noisy(0.5)
    found["nats"] = tokens * 1.2 * noisy(0.25)
    for place in range(PICKED + 1):
        found[f"equal_{place}"] = tokens / tau * 0.015 * noisy(0.1)
    return found | answers(prompts, rng) | heads(prompts, rng)


def answers(prompts: int, rng: np.random.Generator) -> World:
    """Scores: half of the right and wrong ones, and of the others, both decoders have alike."""
    luck, same = rng.random(prompts), rng.random(prompts) < 0.5
    found = {f"right_{share}": (luck < share) * 1.0 for share in (0.1, 0.5, 0.9)}
    found["other_right"] = (np.where(same, luck, rng.random(prompts)) < 0.45) * 1.0
    found["rouge"] = rng.beta(5, 0.9, prompts)
    found["other_rouge"] = np.where(same, found["rouge"], rng.beta(4.5, 0.9, prompts))
    words = np.rint(25 * np.exp(0.4 * rng.standard_normal(prompts))).clip(6, 80).astype(int)
    wanted = np.rint(words * np.exp(0.15 * rng.standard_normal(prompts))).clip(4, 100)
    share, matched = rng.beta(6, 4, prompts), words
    for order in range(4):
        total = words - order
        matched = rng.binomial(np.minimum(matched, total), share ** (0.6 if order else 1.0))
        found[f"bleu_{order}"], found[f"bleu_{4 + order}"] = matched * 1.0, total * 1.0
    found["bleu_8"], found["bleu_9"] = words * 1.0, wanted
    return found


def heads(count: int, rng: np.random.Generator) -> World:
    """Trained heads that decode faster the better they guess (r = 0.7)."""
    accuracy = rng.standard_normal(count)
    return {
        "accuracy": accuracy,
        "head_rate": 0.7 * accuracy + (1 - 0.7**2) ** 0.5 * rng.standard_normal(count),
    }


def columns_of(each: Quantity, drawn: World, rng: np.random.Generator) -> Array:
    """A quantity's columns, measured as often as it says."""
    once = np.stack([drawn[name] for name in each.inputs])
    if each.repeats == 1:
        return once
    found = np.tile(once[:, None, :], (1, each.repeats, 1))
    run = np.exp(RUN_FACTOR * rng.standard_normal((each.repeats, 1)))
    for place, name in enumerate(each.inputs):
        if name.endswith("seconds"):
            own = np.exp(OWN_FACTOR * rng.standard_normal((each.repeats, 1)))
            found[place] *= run * own * np.exp(0.02 * rng.standard_normal(found[place].shape))
    return found


def measure(prompts: int, simulations: int, truths: Sequence[float]) -> Iterator[str]:
    """A line of the table for each quantity."""
    rng, known = np.random.default_rng(1), [each.fewest <= prompts for each in QUANTITIES]
    ends: list[list[tuple[float, float]]] = [[] for _ in QUANTITIES]
    for _ in range(simulations):
        drawn = world(prompts, rng)
        for each, own, there in zip(QUANTITIES, ends, known, strict=True):
            found = each.interval(columns_of(each, drawn, rng)) if there else None
            if found and found.low is not None and found.high is not None:
                own.append((found.low, found.high))
    for each, own, truth in zip(QUANTITIES, ends, truths, strict=True):
        if not own:
            continue
        low, high = np.array(own).T
        above, below = (low > truth).mean(), (high < truth).mean()
        cells = [f"{truth:.3f}", f"{1 - above - below:.3f}", f"{above:.3f}", f"{below:.3f}"]
        cells += [f"{np.median(high - low):.3f}", f"{1 - len(own) / simulations:.3f}"]
        yield f"| {each.name} | {each.repeats} | {prompts} | {' | '.join(cells)} |"


def rare_world(kind: str, prompts: int, rng: np.random.Generator) -> Array:
    """Emitted tokens, target calls, seconds and plain decoding's of prompts that show little."""
    calls = np.round(MEDIAN_LENGTH * np.exp(SIGMA * rng.standard_normal(prompts))).clip(5, 256)
    if kind == "skewed":
        tau = 1 + np.minimum(LOOKED_UP, np.exp(rng.standard_normal(prompts) - 1.5))
        emitted = np.maximum(calls, np.round(calls * tau))
    else:
        share = {"10% hit": 0.1, "5% hit": 0.05, "heavy": 1 / 12}[kind]
        hit = rng.random(prompts) < share
        added = rng.binomial(calls.astype(int), 0.2) * rng.uniform(1, 5.5, prompts)
        added = calls * LOOKED_UP * 0.9 if kind == "heavy" else np.round(added)
        emitted = calls + np.where(hit, added, 0.0)
    noise = np.exp(0.05 * rng.standard_normal((2, prompts)))
    return np.stack([emitted, calls, calls * 0.016 * noise[0], emitted * 0.015 * noise[1]])


def _cover(found: Sequence[Interval | None], truth: float) -> tuple[float, ...]:
    """Coverage, its standard error, both kinds of misses, width, and the share without ends."""
    ends = np.array([each.ends for each in found if each and each.ends])
    low, high = ends.T if len(ends) else np.full((2, 1), np.nan)
    above, below = (low > truth).mean(), (high < truth).mean()
    cover = 1 - above - below
    error = np.sqrt(cover * (1 - cover) / max(1, len(ends)))
    return cover, error, above, below, float(np.median(high - low)), 1 - len(ends) / len(found)


def measure_rare(kind: str, prompts: int, simulations: int) -> Iterator[str]:
    """Lines of tau, the difference from plain decoding's with a claim of closeness to it, and the
    speed-up; of each first by resampling alone, of which a point misses.
    """
    large = rare_world(kind, LARGE, np.random.default_rng(0))
    tau, gain = _ratio(large[:2]), _ratio_of_ratios(large[[0, 2, 0, 3]])
    rng = np.random.default_rng(1)
    rows = [{"decoder": "prompt_lookup", "spec": f"{LOOKED_UP}"}, {"decoder": "ar", "spec": "-"}]
    contrast = (rows[:1], rows[1:2])
    truths = {"block efficiency": tau, "gap": tau - 1, "speed-up": gain}
    found: dict[str, list[Interval | None]] = {name: [] for name in truths}
    alone: dict[str, list[Interval | None]] = {name: [] for name in truths}
    close = 0
    for _ in range(simulations):
        emitted, calls, seconds, plain_s = rare_world(kind, prompts, rng)
        own = compute_interval(
            PromptSums(tuple(emitted), tuple(calls), limits=(1.0, 1.0 + LOOKED_UP))
        )
        speed = rate_ratio_interval(emitted, seconds, emitted, plain_s)
        assert own and speed
        table = np.array([[emitted, calls], [emitted, emitted]])[:, :, None]
        gap = compute_mean_difference([contrast], table, "block_efficiency", False)
        p = gap and gap.within(CLOSE)
        close += p is not None and p[0] <= 0.025
        bare = ratio_intervals([table[0]])[0]
        less = bootstrap_interval(_gap_of_sums, table.reshape(4, 1, -1))
        for name, new, old in (
            ("block efficiency", own, bare),
            ("gap", gap and gap.tested, less),
            (
                "speed-up",
                clip_or_drop_wide_ends("speedup", widen_to_tau_width(speed, own, "speedup")),
                speed,
            ),
        ):
            found[name].append(new)
            alone[name].append(old)
    for name, truth in truths.items():
        cover, error, above, below, width, none = _cover(found[name], truth)
        before = sum(bool(e and e.low and e.low <= truth <= (e.high or 0.0)) for e in alone[name])
        holds = f"{close / simulations:.3f}" if name == "gap" else ""
        numbers = (truth, before / simulations, cover, error, above, below, width, none)
        cells = " | ".join(f"{number:.3f}" for number in numbers)
        yield f"| {name} | {kind} | {prompts} | {cells} | {holds} |"


def _gap_of_sums(sums: Array) -> Array:
    return sums[0] / sums[1] - sums[2] / sums[3]


def measure_seeds(own: float, prompts: int, simulations: int) -> str:
    """A line of a speed-up of 1.3 that two seeds measured, each with a factor of its own, pooled:
    how often it covers, how often both seeds are surely faster, and the pool then is not.
    """
    rng = np.random.default_rng(2)
    found, wide, lost, sure = [], [], [0, 0], 0
    for _ in range(simulations):
        tokens = np.round(MEDIAN_LENGTH * np.exp(SIGMA * rng.standard_normal((1, prompts)))) + 1
        tokens = np.broadcast_to(tokens, (2, prompts))
        lean = 0.15 * rng.standard_normal(prompts) + 0.1 * rng.standard_normal((2, prompts))
        plain_s = 0.015 * tokens
        seconds = plain_s / (1.3 * np.exp(lean + own * rng.standard_normal((2, 1))))
        table = np.stack([tokens, seconds, tokens, plain_s])
        whole, *each = ratio_intervals([table, table[:, :1], table[:, 1:]])
        ends = [one.ends for one in each if one and one.ends]
        assert whole and len(ends) == 2
        pooled = whole.clip(min(low for low, _ in ends), max(high for _, high in ends))
        found.append(pooled)
        wide.append(whole)
        if min(low for low, _ in ends) > 1:
            sure += 1
            for place, one in enumerate((whole, pooled)):
                lost[place] += (one.low or 0.0) <= 1
    # The rate of a pool of many prompts: both leans are lognormal.
    truth = 1.3 / float(np.exp((0.15**2 + 0.1**2) / 2))
    before, (cover, error, *_, width, _) = _cover(wide, truth)[0], _cover(found, truth)
    numbers = f"{before:.3f} | {cover:.3f} | {error:.3f} | {width:.3f}"
    return f"| {own:.0%} | {prompts} | {numbers} | {sure} | {lost[0]} | {lost[1]} |"


def _print_table(title: str, head: str, lines: Iterable[str]) -> list[str]:
    """Prints a table's lines as they are made, and returns them all."""
    columns = head.count("|") - 1
    made = [title, "", head, "| --- | --- " + "| ---: " * (columns - 2) + "|"]
    print("\n".join(made), flush=True)
    for line in lines:
        print(line, flush=True)
        made.append(line)
    return [*made, ""]


def main() -> None:
    """Prints the tables and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--rare", action="store_true", help="keep the first table as it is there")
    wanted = parser.parse_args()
    count = wanted.simulations
    if wanted.rare:
        first = wanted.out.read_text(encoding="utf-8").partition(f"\n{_RARE}")[0].splitlines()
    else:
        large = world(LARGE, np.random.default_rng(0))
        truths = [q.value(np.stack([large[name] for name in q.inputs])) for q in QUANTITIES]
        first = [
            f"Coverage of 95% intervals, {count} simulations per line "
            "(`python scripts/check/interval_coverage.py`; its docstring says what is drawn).",
            "",
        ]
        first += _print_table(
            "*misses above*: the whole interval lies above the truth. *width*: median, in the "
            "quantity's own unit. *none*: the share of simulations without an interval, such as "
            "where its ends would be a factor of more than ten apart.",
            "| quantity | repeats | n | truth | coverage | misses above | misses below | width "
            "| none |",
            (line for prompts in PROMPTS for line in measure(prompts, count, truths)),
        )
    kinds = product(("10% hit", "5% hit", "heavy", "skewed"), FEW_PROMPTS)
    rare = _print_table(
        f"{_RARE}, {count} simulations per line. *alone*: coverage by resampling alone, by which "
        "most intervals were points. *error*: the coverage's standard error. *close*: how often a "
        f"claim holds that tau is within {CLOSE} of plain decoding's, which no row here is.",
        "| quantity | prompts are | n | truth | alone | coverage | error | misses above "
        "| misses below | width | none | close |",
        (line for kind, n in kinds for line in measure_rare(kind, n, count)),
    )
    seeds = _print_table(
        f"A speed-up of two seeds, {count} simulations per line, each seed with a factor of its "
        "own (standard deviation). *alone*: coverage before the ends were kept within the seeds' "
        "own. *sure*: how often both seeds are surely faster; *lost*: how often the pool of these "
        "is not, before and after.",
        "| own factor | n | alone | coverage | error | width | sure | lost before | lost |",
        (measure_seeds(f, n, count) for f, n in product((0.0, 0.02, 0.05), FEW_PROMPTS)),
    )
    lines = [*first, *([] if first[-1:] == [""] else [""]), *rare, *seeds]
    wanted.out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
