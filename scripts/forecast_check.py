"""Are forecasts of block efficiency unbiased? Forecast against counted, over splits of the prompts.

    python scripts/forecast_check.py --task dolly --splits 10 --prompts 8

For every split of the prompts and every decoder: tokens per target call forecast from plain
decoding's text, and counted by running the decoder on the same prompts. Their difference on a log
scale over its standard error (jackknife over prompts, in pairs) is a z-score; unbiased forecasts
with honest errors have z-scores of mean 0 and spread 1.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from math import log, sqrt

import torch
import yaml

from spec_bench import load_pair
from spec_bench.configs import conf_dir
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder, resolve_spec
from spec_bench.forecast.decoders import Text, calls_for
from spec_bench.forecast.laws import laws_of
from spec_bench.records import Request
from spec_bench.tasks import build_task

Sums = Sequence[tuple[float, float]]
CELLS = (
    "sd:3",
    "sd:6",
    "block:3",
    "block:8",
    "rsd_c:2-1",
    "rsd_c:4-1-1",
    "rsd_c:2-2-2",
    "specinfer:2-1",
    "specinfer:4-1-1",
    "specinfer:2-2-2",
    "mcns:2-1",
    "mcns:4-1-1",
)


def efficiency(sums: Sums) -> float:
    """Tokens over calls."""
    return sum(tokens for tokens, _ in sums) / sum(calls for _, calls in sums)


def z_score(
    forecast: Sequence[tuple[float, float]], counted: Sequence[tuple[float, float]]
) -> float:
    """Of two block efficiencies, from (tokens, calls) by prompt, matched."""

    def difference(left_out: int | None = None) -> float:
        ratios = []
        for pairs in (forecast, counted):
            kept = [pair for index, pair in enumerate(pairs) if index != left_out]
            ratios.append(log(efficiency(kept)))
        return ratios[0] - ratios[1]

    count = len(forecast)
    without = [difference(index) for index in range(count)]
    mean = statistics.fmean(without)
    error = sqrt((count - 1) / count * sum((value - mean) ** 2 for value in without))
    return difference() / error


def main() -> None:
    """Prints a line a decoder and the mean and spread of all z-scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--task", default="dolly")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=8, help="of each split")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--cells", nargs="+", default=CELLS)
    asked = parser.parse_args()
    pair, settings = load_pair(asked.pair), SamplingSettings(1.0)
    target, draft = pair.models[:2]
    given = yaml.safe_load((conf_dir() / "task" / f"{asked.task}.yaml").read_text())
    given["source"]["kind"] = "embedded"
    task = build_task(given)
    examples = task.examples(asked.splits * asked.prompts)
    assert len(examples) == asked.splits * asked.prompts, f"the task has {len(examples)} examples"
    ends = (pair.tokenizer.eos_token_id,)
    requests = [
        Request(e.id, tuple(task.encode(e, pair.tokenizer)), asked.tokens, ends) for e in examples
    ]
    configs = {}
    for cell in asked.cells:
        name, _, spec = cell.partition(":")
        given = yaml.safe_load((conf_dir() / "decoder" / f"{name}.yaml").read_text())
        configs[cell] = read_decoder(resolve_spec(given, spec), settings)
    given = yaml.safe_load((conf_dir() / "decoder" / "ar.yaml").read_text())
    plain = read_decoder(given, settings).build(target, [], settings)
    answers = plain.generate(requests, seed=1)
    texts = [
        Text(torch.tensor(a.tokens), *laws_of(target, draft, r.prompt_ids, a.tokens, settings))
        for r, a in zip(requests, answers, strict=True)
    ]
    scores, generator = [], torch.Generator().manual_seed(0)
    print(f"{'decoder':<18}{'forecast':>10}{'counted':>10}{'z mean':>10}{'z spread':>10}")
    for cell, config in configs.items():
        built = config.build(target, [draft], settings)
        counted = [(len(g.tokens), len(g.steps)) for g in built.generate(requests, seed=2)]
        forecast = [(len(t.tokens), calls_for(config, t, settings, generator)) for t in texts]
        own = []
        for start in range(0, len(requests), asked.prompts):
            split = slice(start, start + asked.prompts)
            own.append(z_score(forecast[split], counted[split]))
        scores += own
        both = [
            sum(t for t, _ in pairs) / sum(c for _, c in pairs) for pairs in (forecast, counted)
        ]
        spread = statistics.stdev(own) if len(own) > 1 else float("nan")
        print(
            f"{cell:<18}{both[0]:>10.3f}{both[1]:>10.3f}{statistics.fmean(own):>10.2f}{spread:>10.2f}"
        )
    print(
        f"all: mean {statistics.fmean(scores):.2f}, spread {statistics.stdev(scores):.2f}, "
        f"{len(scores)} z-scores on {len(requests)} prompts"
    )


if __name__ == "__main__":
    main()
