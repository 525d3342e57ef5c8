"""Is the engine right on this device: ``python3 scripts/gpu/correct.py``.

Needs torch and transformers only. Greedy answers of every decoder, on the embedded pair, beside
those of transformers' ``generate`` on the same device and in the same number format; where they
part, the target's own logits tell a near-tie from an error. Beam search stands beside the CPU's.
First comes the distribution of sampled answers: five decoders on a Markov chain whose distribution
is known, by chi-square; a right one fails once in a million. What has been tried is in
``gpu-correct.csv`` and is not tried again; after ``--minutes`` nothing is begun.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import (
    EMBEDDED,
    FITTED,
    MORE_SPECS,
    SPECS,
    Models,
    embedded_pair,
    embedded_requests,
)
from spec_bench.audit.decoders import FALSE_ALARM_RATE, chi_square
from spec_bench.audit.models import first_difference
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import AnyDecoder, read_decoder, resolve_spec
from spec_bench.draft.heads import load_heads
from spec_bench.engine.cache import CachePool
from spec_bench.engine.generate import Aid, generate
from spec_bench.engine.static_pass import passes_of
from spec_bench.records.types import Request
from spec_bench.system.files import read_csv, write_csv

ROOT = Path(__file__).resolve().parents[2]
HEADS = {"medusa": "medusa", "redrafter": "redrafter", "eagle": "eagle1", "eagle3": "eagle3"}
LAWS = ("sd", "spectr", "mcsd", "rsd_s", "traversal")
COLUMNS = [
    "device",
    "dtype",
    "compile",
    "batch",
    "decoder",
    "equal",
    "near_ties",
    "wrong",
    "p_value",
    "passes",
    "refused",
    "s",
]
ANOTHERS = ("transformers", "server")  # rules of other engines
BEAM_SEARCH = "beam_search"
Row = dict[str, Any]


class Setting(NamedTuple):
    """What decoders are tried under."""

    dtype: str  # of the weights
    compile: str  # how passes are captured
    batch: int  # prompts that decode together
    continuous: bool = False  # whether a prompt that ends makes room for the next

    @property
    def label(self) -> str:
        return f"{self.batch}{' continuous' if self.continuous else ''}"


# The likeliest to be wrong first: time may run out.
SETTINGS = [
    Setting("float32", "static", 1),
    Setting("bfloat16", "static", 1),
    Setting("float32", "static", 4, continuous=True),
    Setting("float32", "static", 16),
    Setting("float32", "none", 1),
    Setting("bfloat16", "static", 4),
    Setting("bfloat16", "none", 16),
]


@dataclass
class Bench:
    """A pair on the device under one setting, and what its answers are held against."""

    setting: Setting  # dtype, capture, batch
    models: Models  # target and draft
    requests: list[Request]  # what is asked
    pool: CachePool  # of the caches

    def __post_init__(self) -> None:
        greedy = SamplingSettings(temperature=0)
        self.plain = [
            generate(self.models[0], [request], greedy, 0, Aid()).answers[0]
            for request in self.requests
        ]

    def decoder(self, name: str) -> AnyDecoder:
        """A decoder of ``conf/decoder`` at temperature 0."""
        target, draft = self.models
        config = read_decoder(decoder_settings(name))
        heads = None
        if config.heads:
            folder = EMBEDDED / "heads" / HEADS[config.heads]
            heads = load_heads(str(folder), target.device, target.dtype)
        greedy = SamplingSettings(temperature=0)
        drafts = [draft] * config.drafts
        return config.build(target, drafts, greedy, self.setting.batch, self.pool, heads)

    def answers(self, decoder: AnyDecoder) -> list[tuple[int, ...]]:
        """Of every request, in batches or in one that is continuous."""
        step = len(self.requests) if self.setting.continuous else self.setting.batch
        parts = [self.requests[i : i + step] for i in range(0, len(self.requests), step)]
        return [answer.tokens for part in parts for answer in decoder.generate(part, 0)]


def decoder_settings(name: str) -> dict[str, Any]:
    """A decoder's config with a tree."""
    settings = yaml.safe_load((ROOT / "conf" / "decoder" / f"{name}.yaml").read_text())
    if name == "sequoia":
        settings["tree"] |= {"nodes": FITTED, "total": len(FITTED)}
    spec = {**SPECS, **MORE_SPECS}.get(name)
    resolved: dict[str, Any] = resolve_spec(settings, spec)
    return resolved


def names() -> list[str]:
    """Decoders with one right greedy answer: the target's own, or beam search's."""
    found = []
    for path in sorted((ROOT / "conf" / "decoder").glob("*.yaml")):
        rule = yaml.safe_load(path.read_text(encoding="utf-8"))["verifier"]["rule"]
        if rule not in ANOTHERS:
            mark = read_decoder(decoder_settings(path.stem)).verifier.mark
            if mark == "exact" or rule == BEAM_SEARCH:
                found.append(path.stem)
    return found


def tried(bench: Bench, name: str, cpu: Bench) -> Row:
    """One decoder under one setting."""
    before, start_s = passes_of(bench.models), time.monotonic()
    answers = bench.answers(bench.decoder(name))
    seconds, ran = time.monotonic() - start_s, passes_of(bench.models) - before
    right = cpu.answers(cpu.decoder(name)) if name == BEAM_SEARCH else bench.plain
    pairs = zip(bench.requests, right, answers, strict=True)
    differences = [first_difference(bench.models[0], *pair) for pair in pairs]
    apart = [difference for difference in differences if difference]
    return {
        "equal": len(answers) - len(apart),
        "near_ties": sum(difference.near_tie for difference in apart),
        "wrong": sum(not difference.near_tie for difference in apart),
        "passes": ran.share,
        "refused": ran.refused,
        "s": round(seconds, 1),
    }


def greedy_rows(options: argparse.Namespace, known: set[tuple[str, ...]]) -> Iterator[Row]:
    """Every decoder under every setting that has not been tried."""
    requests = embedded_requests(options.prompts, options.new_tokens)
    cpu = Bench(Setting("float32", "none", 1), embedded_pair(), requests, CachePool())
    for setting in SETTINGS:
        place = options.device, setting.dtype, setting.compile, setting.label
        missing = [name for name in options.decoders if (*place, name) not in known]
        if setting.dtype != "float32":  # sums over beams have ties of their own
            missing = [name for name in missing if name != BEAM_SEARCH]
        if not missing:
            continue
        models = embedded_pair(setting.compile, options.device, setting.dtype)
        bench = Bench(setting, models, requests, CachePool())
        for name in missing:
            row = dict(zip(COLUMNS, (*place, name), strict=False))
            yield row | tried(bench, name, cpu)


def law_rows(options: argparse.Namespace, known: set[tuple[str, ...]]) -> Iterator[Row]:
    """The distribution of sampled answers, on the device's generators."""
    warm = SamplingSettings(temperature=1.0)
    for name in LAWS:
        place = options.device, "float32", "none", "law", name
        if place not in known:
            start_s = time.monotonic()
            config = read_decoder(decoder_settings(name))
            chance = chi_square(config, warm, samples=options.samples, device=options.device)
            seconds = round(time.monotonic() - start_s, 1)
            wrong = int(chance < FALSE_ALARM_RATE)
            row = dict(zip(COLUMNS, place, strict=False))
            yield row | {"wrong": wrong, "p_value": f"{chance:.2g}", "s": seconds}


def main() -> int:
    """Tries what was not tried; exit status 1 where a decoder is wrong or a pass was refused."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--decoders", nargs="+", default=names())
    parser.add_argument("--minutes", type=float, default=1e6, help="then nothing is begun")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "benchmarks")
    options = parser.parse_args()
    ends_s = time.monotonic() + 60 * options.minutes
    path = options.output / "gpu-correct.csv"
    rows: list[Row] = read_csv(path) if path.is_file() else []
    known = {tuple(str(row[column]) for column in COLUMNS[:5]) for row in rows}
    for making in (law_rows, greedy_rows):
        for row in making(options, known):
            print(*(f"{name} {value}" for name, value in row.items()), sep=", ", flush=True)
            rows.append(row)
            write_csv(path, rows, COLUMNS)
            if time.monotonic() > ends_s:
                print("time is over; the same command goes on", flush=True)
                return 1
    wrong, refused = (sum(int(row.get(c) or 0) for row in rows) for c in ("wrong", "refused"))
    print(f"{len(rows)} rows, {wrong} wrong, {refused} passes refused: {path}")
    return int(wrong > 0 or refused > 0)


if __name__ == "__main__":
    sys.exit(main())
