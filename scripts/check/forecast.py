"""Are forecasts of block efficiency unbiased? Forecast against counted, over splits of the prompts.

    python scripts/check/forecast.py                       # goes on where it was stopped

For every decoder that can be forecast and six trees of each: tokens per target call forecast from
plain decoding's text, and counted by running the decoder on the same prompts. The prompts fall into
disjoint splits. A split gives one z-score: the difference of the two on a log scale over its
standard error. The error is the jackknife's over all prompts of the task, in pairs, so that it
holds the noise of both texts and of the forecast's own draws; for a split of a share s of them it
is larger by 1/sqrt(s). Unbiased forecasts with honest errors have z-scores of mean 0 and spread 1.

An error from the split's own prompts alone would not do: of eight prompts, many with answers that
are as good as determined and whose difference is 0, it is too small now and then, even 0, and what
is divided by it has Student's long tails: of 8 normal numbers a spread of 1.18.

``mcsd`` and ``mcsd_wor`` are rule and tree of ``specinfer`` and ``rsd_c``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from math import log, sqrt
from pathlib import Path

import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench import load_pair
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.blocks import resolve_spec
from spec_bench.decode.config import DecoderConfig, read_decoder
from spec_bench.recommend.decoders import Text, calls_for
from spec_bench.recommend.laws import laws_of
from spec_bench.records.types import Request
from spec_bench.settings.configs import conf_dir
from spec_bench.tasks import build_task

ROOT = Path(__file__).resolve().parents[2]
Sums = Sequence[Sequence[float]]
CHAINS = ("1", "2", "3", "4", "6", "8")
WIDTHS = ("2", "3-1", "2-2", "2-1-1", "4-1-1", "2-2-2")
# Decoder, its rule where it is another one than its own, its trees.
DECODERS = (
    ("sd", None, CHAINS),
    ("block", None, CHAINS),
    ("mcns", None, WIDTHS),
    ("specinfer", None, WIDTHS),
    ("rsd_c", None, WIDTHS),
    ("specinfer", "k_seq", WIDTHS),
    ("specinfer", "optimal", WIDTHS),
    ("top_and_sample", None, WIDTHS),
)
WARM = SamplingSettings(1.0)


def efficiency(sums: Sums) -> float:
    """Tokens over calls."""
    return sum(tokens for tokens, _ in sums) / sum(calls for _, calls in sums)


def difference(forecast: Sums, counted: Sums) -> float:
    """Of two block efficiencies on a log scale, from (tokens, calls) by prompt."""
    return log(efficiency(forecast)) - log(efficiency(counted))


def error_of(forecast: Sums, counted: Sums) -> float:
    """Standard error of the difference by jackknife over prompts, which are matched."""
    count = len(forecast)
    without = [
        difference([*forecast[:out], *forecast[out + 1 :]], [*counted[:out], *counted[out + 1 :]])
        for out in range(count)
    ]
    mean = statistics.fmean(without)
    return sqrt((count - 1) / count * sum((value - mean) ** 2 for value in without))


def z_scores(forecast: Sums, counted: Sums, prompts: int) -> list[float]:
    """One of every split of so many prompts."""
    error = error_of(forecast, counted) * sqrt(len(forecast) / prompts)
    splits = [slice(start, start + prompts) for start in range(0, len(forecast), prompts)]
    return [difference(forecast[split], counted[split]) / error for split in splits]


def cells() -> Iterator[tuple[str, DecoderConfig]]:
    """Name and config of every decoder and tree."""
    for name, rule, specs in DECODERS:
        block = yaml.safe_load((conf_dir() / "decoder" / f"{name}.yaml").read_text())
        if rule:
            block |= {"name": f"{name}_{rule}", "verifier": {"rule": rule}}
        for spec in specs:
            yield f"{block['name']}:{spec}", read_decoder(resolve_spec(block, spec), WARM)


class Bench:
    """One task's prompts, the texts that plain decoding wrote, and what every cell made of them."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        prompts, tokens = asked.splits * asked.prompts, asked.tokens
        pair = load_pair("embedded")
        self.target, self.draft = pair.models[:2]
        self.rows, self.draws = asked.rows, asked.draws
        given = yaml.safe_load((conf_dir() / "task" / f"{name}.yaml").read_text())
        given["source"]["kind"] = "embedded"
        task, end = build_task(given), (pair.tokenizer.eos_token_id,)
        examples = task.examples(prompts)
        assert len(examples) == prompts, f"task {name} has {len(examples)} examples"
        self.requests = [
            Request(e.id, tuple(task.encode(e, pair.tokenizer)), tokens, end) for e in examples
        ]
        self.kept = asked.folder / f"{name}-{prompts}x{tokens}-{self.draws}.jsonl"
        self._texts: list[Text] = []

    def texts(self) -> list[Text]:
        """Plain decoding's, with both laws."""
        if not self._texts:
            block = yaml.safe_load((conf_dir() / "decoder" / "ar.yaml").read_text())
            plain = read_decoder(block, WARM).build(self.target, [], WARM, self.rows)
            for request, answer in zip(
                self.requests, plain.generate(self.requests, 1), strict=True
            ):
                laws = laws_of(self.target, self.draft, request.prompt_ids, answer.tokens, WARM)
                self._texts.append(Text(torch.tensor(answer.tokens), *laws))
        return self._texts

    def sums(self) -> Iterator[tuple[str, Sums, Sums]]:
        """Of every cell (tokens, calls) by prompt, forecast and counted; kept as they come."""
        lines = self.kept.read_text().splitlines() if self.kept.exists() else []
        known = {cell: found for cell, *found in map(json.loads, lines)}
        for place, (cell, config) in enumerate(cells()):
            if cell not in known:
                known[cell] = self._work(config, seed=place + 2)
                with self.kept.open("a") as stream:
                    stream.write(json.dumps([cell, *known[cell]]) + "\n")
            yield cell, *known[cell]

    def _work(self, config: DecoderConfig, seed: int) -> list[Sums]:
        generator = torch.Generator().manual_seed(seed)
        forecast = [
            (len(text.tokens), calls_for(config, text, WARM, generator, self.draws))
            for text in self.texts()
        ]
        built = config.build(self.target, [self.draft], WARM, self.rows)
        counted = [(len(g.tokens), len(g.steps)) for g in built.generate(self.requests, seed)]
        return [forecast, counted]


def spread(scores: Sequence[float]) -> float:
    """Standard deviation."""
    return statistics.stdev(scores) if len(scores) > 1 else float("nan")


def told(asked: argparse.Namespace) -> Iterator[str]:
    """The lines of the page."""
    every: list[float] = []
    for task in asked.tasks:
        bench = Bench(task, asked)
        yield from (f"## {task}", "", "| decoder | forecast | counted | z, mean | z, spread |")
        yield "| --- | ---: | ---: | ---: | ---: |"
        mine: list[float] = []
        for cell, forecast, counted in bench.sums():
            own = z_scores(forecast, counted, asked.prompts)
            mine += own
            both = f"{efficiency(forecast):.3f} | {efficiency(counted):.3f}"
            yield f"| {cell} | {both} | {statistics.fmean(own):.2f} | {spread(own):.2f} |"
        yield from ("", f"{task}: {_total(mine)}.", "")
        every += mine
    yield f"All tasks: {_total(every)}."


def _total(scores: Sequence[float]) -> str:
    mean, count = statistics.fmean(scores), len(scores)
    return f"mean {mean:.2f}, spread {spread(scores):.2f}, {count} z-scores"


def main() -> None:
    """Writes the page, once all is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["alpaca", "dolly", "xsum"])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=8, help="of each split")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--draws", type=int, default=4, help="of children, for a position's chance")
    parser.add_argument("--rows", type=int, default=40, help="prompts that decode together")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "forecast_check")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    command = f"--splits {asked.splits} --prompts {asked.prompts} --tokens {asked.tokens}"
    head = (
        "# Forecast against counted block efficiency",
        "",
        f"`python scripts/check/forecast.py {command}`: the embedded pair, temperature 1. "
        f"{asked.splits} disjoint splits of {asked.prompts} prompts per task.",
        *(
            line
            for p in (__doc__ or "").split("\n\n")[2:]
            for line in ("", p.strip().replace("\n", " "))
        ),
        "",
    )
    lines = []
    for line in (*head, *told(asked)):
        print(line, flush=True)
        lines.append(line)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
