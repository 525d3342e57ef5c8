"""How often verdicts are false, and how often they find what is there: drawn records, known truth.

    python scripts/check/verdict_null.py                       # some 20 minutes on one core
    python scripts/check/verdict_null.py --simulations 50 --out /tmp/verdicts.md

Every form of claim is checked by the code that checks a paper's, on rows and records that are
drawn: a prompt has a lognormal length and, for each cell, a lognormal rate that leans on the prompt
(spreads of 0.2 and 0.3) or, for scores, an answer that is right or wrong. A look-up that seldom
hits brings more tokens per call on one prompt in ten and none on all others. *Nothing there* is the
worst case of the claim being false: sides that are equal, or that differ by just the margin.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.report.claims.ask import ClaimQuery, best, every, most, rising, steps
from spec_bench.report.claims.contrast import compute_mean_difference
from spec_bench.report.claims.general import check_all_exact_scores, check_fastest_beats_baseline
from spec_bench.report.claims.verdict import HOLDS, Check, PValues, list_holm_verdicts
from spec_bench.report.data.counts import Counts, RecordReader
from spec_bench.report.data.rows import Row
from spec_bench.report.papers.paper import import_paper_code, load_paper

OUT = Path(__file__).resolve().parents[2] / "results/benchmarks/verdict-null.md"
PROMPTS = (2, 5, 8, 20, 50, 100)
PAGE = 100
SPREAD, LEAN = 0.2, 0.3
RIGHT = 0.6  # share of right answers


@dataclass(frozen=True)
class Cell:
    """A drawn cell."""

    decoder: str  # its decoder
    spec: str  # its tree
    nothing: float = 1.0  # its rate, or share of right answers, where there is nothing to find
    there: float = 1.0  # the same where there is


@dataclass(frozen=True)
class Form:
    """A form of claim."""

    name: str  # for the table
    claim: Callable[[ClaimQuery], Iterable[Check]]  # as in a paper's `claims.py`
    cells: tuple[Cell, ...]  # what is drawn
    metric: str = "token_rate"  # what they are compared by
    rare: bool = False  # whether a rate shows on one prompt in ten alone


class Drawn(RecordReader):
    """Records that were drawn, by run id."""

    def __init__(self, counts: dict[str, dict[str, Counts]]) -> None:
        super().__init__(Path("drawn"))
        self._counts = counts

    def _find_block(self, rows: Sequence[Row]) -> None:
        """They are in no file."""

    def get_counts_by_seed_and_repeat(self, row: Row, name: str) -> dict[str, Counts] | None:
        """One seed's counts."""
        return (found := self._counts[str(row["run_id"])].get(name)) and {"0": found}

    def get_interleaved_counts(
        self, rows: Sequence[Row], name: str
    ) -> list[dict[str, Counts]] | None:
        """All were timed in turn."""
        found = [self.get_counts_by_seed_and_repeat(row, name) for row in rows]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else None


def _several(decoder: str, count: int, **rates: float) -> tuple[Cell, ...]:
    return tuple(Cell(decoder, f"{place}x2", **rates) for place in range(1, count + 1))


def _claim(left: str = "rsd_s", right: str = "sd", metric: str = "token_rate", **how: Any):
    return lambda ask: ask.ahead("left > right", left, right, metric, **how)


def _ahead(left: int, right: int) -> Form:
    cells = (*_several("rsd_s", left, there=1.1), *_several("sd", right))
    return Form(f"best of {left} ahead of the best of {right}", _claim(by=best), cells)


def _forms() -> tuple[Form, ...]:
    pair = (Cell("rsd_s", "2x2", there=1.1), Cell("sd", "2x2"))
    same = partial(_claim, same="spec")
    sevens = tuple(Cell("sd", f"{k}x2") for k in range(1, 6))
    strong = {k: 1.3 if k < 3 else 1.0 for k in range(1, 6)}
    mixed = tuple(Cell("rsd_s", f"{k}x2", strong[k], 1.2) for k in range(1, 6))
    one_not = tuple(Cell("rsd_s", f"{k}x2", 1.3 if k < 5 else 1.0, 1.2) for k in range(1, 6))
    decoders = ("sd", "spectr", "specinfer", "mcsd", "mcsd_wor", "rsd_c", "rsd_s", "block")
    exact = tuple(Cell(name, "2x2", RIGHT - 0.05, RIGHT) for name in decoders[:4])
    front = import_paper_code(load_paper("dsbd").folder, "claims").front
    near = partial(_claim, "prompt_lookup", "ar", "block_efficiency")
    # Hits of 1 to 3.25 tokens a call, evenly: over all calls 0.05 more than plain decoding's.
    hits = (Cell("prompt_lookup", "10", 1.1125, 1.0), Cell("ar", "-"))
    return (
        Form("ahead, rates", same(), pair),
        Form(
            "within 0.05, a look-up that seldom hits",
            near(expect=lambda gap: gap.within(0.05)), hits, "block_efficiency", rare=True,
        ),
        Form(
            "ahead, a look-up that seldom hits", near(),
            (Cell("prompt_lookup", "10", 1.0, 1.3), Cell("ar", "-")), "block_efficiency", rare=True,
        ),
        Form(
            "ahead, tokens per call", same(metric="block_efficiency"), pair, "block_efficiency"
        ),
        _ahead(5, 1),
        _ahead(5, 5),
        _ahead(10, 5),
        _ahead(461, 10),
        Form("mean of 5 comparisons", same(), (*mixed_mean(), *sevens)),
        Form("all of 5 hold", same(each="width", judge=every(0)), (*one_not, *sevens)),
        Form("most of 5 hold", same(each="width", judge=most), (*mixed, *sevens)),
        Form(
            "within 5%", same(expect=lambda gap: gap.within(0.05)),
            (Cell("rsd_s", "2x2", 1.05, 1.0), Cell("sd", "2x2")),
        ),
        Form(
            "at least 1.5 times", same(expect=lambda gap: gap.above(0.5)),
            (Cell("rsd_s", "2x2", 1.5, 1.8), Cell("sd", "2x2")),
        ),
        Form(
            "rising", _claim("sd", by=steps("width"), judge=rising),
            tuple(Cell("sd", f"{k}x2", 1.0, 1 + 0.05 * k) for k in range(1, 5)),
        ),
        Form(
            "the fastest beats ar", check_fastest_beats_baseline,
            (Cell("ar", "-"), *(Cell(name, "2x2", 1.0, 1.1) for name in decoders)),
        ),
        Form(
            "scores are similar", check_all_exact_scores,
            (Cell("ar", "-", RIGHT, RIGHT), *exact), "exact_match",
        ),
        Form(
            "beams: front above, and faster at no worse score", front,
            (
                *(Cell("beam_sampling", str(k)) for k in (2, 4)),
                *(Cell("dsbd", f"{k}x4@0.9", 1.0, 1.9) for k in (2, 3, 4, 6)),
            ), "both",
        ),
    )  # fmt: skip


def mixed_mean() -> tuple[Cell, ...]:
    """Comparisons whose mean is nothing: two ahead, two behind."""
    rates = (1.2, 1 / 1.2, 1.1, 1 / 1.1, 1.0)
    return tuple(Cell("rsd_s", f"{k}x2", rate, 1.1) for k, rate in enumerate(rates, 1))


def ask_of(form: Form, prompts: int) -> ClaimQuery:
    """The rows of an experiment, without numbers that a verdict would hang on."""
    fixed = {
        "pair": "drawn", "task": "drawn", "status": "complete", "lossless": "exact",
        "prompts": prompts, "tree_attention": True, "temperature": 1.0, "seed": 0,
        "token_rate": 1.0, "speedup": 1.0, "exact_match": RIGHT,
    }  # fmt: skip
    cells = [
        {"run_id": f"r{place}", "decoder": cell.decoder, "spec": cell.spec}
        for place, cell in enumerate(form.cells)
    ]
    rows = pd.DataFrame(cells).assign(**fixed)
    if form.metric not in ("exact_match", "both"):
        rows = rows.drop(columns="exact_match")
    return ClaimQuery(rows, Drawn({})).of()


def drawn(form: Form, prompts: int, there: bool, rng: np.random.Generator) -> Drawn:
    """The records of one experiment."""
    length = np.exp(4 + 0.5 * rng.standard_normal(prompts))
    lean = LEAN * rng.standard_normal(prompts)
    easy = rng.random(prompts)
    counts = dict[str, dict[str, Counts]]()
    for place, cell in enumerate(form.cells):
        rate = cell.there if there else cell.nothing
        own: dict[str, Counts] = {}
        wanted = ("token_rate", "exact_match") if form.metric == "both" else (form.metric,)
        for name in wanted:
            if name == "exact_match":
                share = RIGHT if form.metric == "both" else rate
                # Half of the prompts are easy or hard for all cells alike.
                anew = np.where(rng.random(prompts) < 0.5, rng.random(prompts), easy)
                above, below = (anew < share).astype(float), np.ones(prompts)
            else:
                speed = rate * np.exp(lean + SPREAD * rng.standard_normal(prompts))
                if form.rare:  # tokens per call, all of them above 1 on one prompt in ten
                    speed = 1 + (rng.random(prompts) < 0.1) * (rate - 1) * 10 * rng.uniform(
                        0, 2, prompts
                    )
                above, below = length, length / speed
            own[name] = {f"p{i}": (above[i], below[i]) for i in range(prompts)}
        counts[f"r{place}"] = own
    return Drawn(counts)


def p_values_of(form: Form, ask: ClaimQuery, there: bool, seed: int) -> list[PValues]:
    """The p-values of one experiment; none where nothing is decided."""
    prompts = int(ask.rows.prompts.iloc[0])
    rng = np.random.default_rng([seed, prompts, there])
    ask = replace(ask, records=drawn(form, prompts, there, rng))
    return [check.p_values for check in form.claim(ask) if check.p_values]


def share(found: Sequence[Sequence[PValues]], wanted: Callable[[str], bool]) -> float:
    """The share of experiments with such a verdict, each judged on its own."""
    return float(
        np.mean([any(map(wanted, list_holm_verdicts(each))) if each else 0.0 for each in found])
    )


def measured(
    form: Form, simulations: int
) -> dict[int, tuple[list[list[PValues]], list[list[PValues]]]]:
    """By prompts the p-values of every experiment, nothing there and something there."""
    cut = simulations if len(form.cells) < 100 else max(20, simulations // 4)
    found = {}
    for prompts in PROMPTS:
        ask = ask_of(form, prompts)
        both = tuple(
            [p_values_of(form, ask, there, seed) for seed in range(cut)] for there in (False, True)
        )
        found[prompts] = (both[0], both[1])
    return found


def page(prompts: int, rng: np.random.Generator) -> list[PValues]:
    """PValues of ``PAGE`` comparisons with nothing there: single trees, the best of 5 and of 10."""
    found = []
    for left, right in [(1, 1), (5, 1), (5, 5), (10, 5)] * (PAGE // 4):
        sides = ((*_several("rsd_s", left),), (*_several("sd", right),))
        rows = [tuple({"decoder": c.decoder, "spec": c.spec} for c in side) for side in sides]
        length = np.exp(4 + 0.5 * rng.standard_normal(prompts))
        lean = LEAN * rng.standard_normal(prompts)
        own = SPREAD * rng.standard_normal((left + right, prompts))
        table = np.empty((left + right, 2, 1, prompts))
        table[:, 0, 0], table[:, 1, 0] = length, length / np.exp(lean + own)
        gap = compute_mean_difference([(rows[0], rows[1])], table, "token_rate", relative=True)
        if gap is not None and (p_values := gap.above()) is not None:
            found.append(p_values)
    return found


def pages(prompts: int, count: int) -> float:
    """The share of such pages on which any check holds, judged together."""
    rng = np.random.default_rng(prompts)
    return float(np.mean([HOLDS in list_holm_verdicts(page(prompts, rng)) for _ in range(count)]))


def main() -> None:
    """Prints the tables and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--out", type=Path, default=OUT)
    wanted = parser.parse_args()
    head = f"| form of claim | {' | '.join(f'n = {n}' for n in PROMPTS)} |"
    rule = "| --- " + "| ---: " * len(PROMPTS) + "|"
    false, power = [head, rule], [head, rule]
    for form in _forms():
        began = time.time()
        found = measured(form, wanted.simulations)
        cells: list[list[str]] = [[], []]
        for nothing, there in found.values():
            alone = share(nothing, HOLDS.__eq__)
            seen = share(there, HOLDS.__eq__)
            # As the first of a page of PAGE checks to be judged, with twice as many p-values.
            paged = np.mean([any(o[0] <= 0.05 / (2 * PAGE) for o in each) for each in there])
            cells[0].append(f"{alone:.3f}")
            cells[1].append(f"{seen:.2f} ({paged:.2f})")
        for lines, own in zip((false, power), cells, strict=True):
            lines.append(f"| {form.name} | {' | '.join(own)} |")
            print(lines[-1], flush=True)
        print(f"{time.time() - began:.0f} s", flush=True)
    whole = " | ".join(f"{pages(n, wanted.simulations):.3f}" for n in PROMPTS)
    false.append(f"| any of a page of {PAGE} comparisons | {whole} |")
    texts = [
        f"Verdicts on drawn records, {wanted.simulations} experiments a cell, a quarter as many of "
        "the widest search (`python scripts/check/verdict_null.py`; its docstring says what is "
        "drawn).",
        "",
        "False \"holds\": nothing is there, and the check says that the claim holds. One check is "
        f"judged on its own; a page is {PAGE} comparisons: single trees, the best of 5, of 10.",
        "",
        *false,
        "",
        "Power: something is there (a tenth faster, 1.8 times where 1.5 is asked, equal where a "
        f"margin is), and the check says so, alone (and as one of {PAGE} on a page).",
        "",
        *power,
    ]  # fmt: skip
    wanted.out.write_text("\n".join(texts) + "\n", encoding="utf-8")
    print(false[-1])


if __name__ == "__main__":
    main()
