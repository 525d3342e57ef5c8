"""Is the engine right on this device: ``python3 scripts/gpu/correct.py``.

Needs torch, transformers and pydantic only. First the distribution of sampled answers: five
decoders on a Markov chain whose distribution is known, by chi-square; a right one fails once in a
million. Then every decoder's greedy answers on the embedded pair beside those of transformers'
``generate`` on the same device and in the same number format; where they part, the target's own
logits tell a near-tie from an error. Beam search is compared with the CPU's. Then every decoder's
canary, what it samples in 1, 4 and 16 rows, recorded and not, and more batches and number formats.
What has been tried is in ``gpu-correct.csv`` and is not tried again: the same command goes on.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
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
    how_it_ran,
    prepare,
)
from spec_bench.audit.decoders import FALSE_ALARM_RATE, sample_decoder_p_value
from spec_bench.audit.models import find_first_difference
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import AnyDecoder, apply_tree_shorthand, read_decoder
from spec_bench.draft.heads import load_heads
from spec_bench.engine.cache import CachePool
from spec_bench.engine.generate import Assistance, run_generate
from spec_bench.records.types import Request
from spec_bench.settings.fields import to_one_line
from spec_bench.system.files import read_csv, write_csv

ROOT = Path(__file__).resolve().parents[2]
HEADS = yaml.safe_load((ROOT / "conf" / "pair" / "embedded.yaml").read_text())["heads"]
LAWS = ("sd", "spectr", "mcsd", "rsd_s", "traversal")
COLUMNS = [
    "device", "dtype", "compile", "batch", "decoder", "equal", "near_ties", "wrong", "p_value",
    "passes", "refused", "failed", "s",
]  # fmt: skip
ANOTHERS = ("transformers", "server")  # rules of other engines
UNTRAINED = ("p_eagle", "pard")  # the pair has no head or draft that was trained for them
BEAM_SEARCH = "beam_search"
Row = dict[str, Any]


class Setting(NamedTuple):
    """What decoders are tried under."""

    dtype: str  # of the weights
    compile: str  # how passes and iterations are captured
    batch: int  # prompts that decode together
    continuous: bool = False  # whether a prompt that ends makes room for the next
    temperature: float = 0  # only greedy answers are held against others

    @property
    def label(self) -> str:
        kind = " sampled" if self.temperature else " continuous" if self.continuous else ""
        return f"{self.batch}{kind}"


FIRST = [Setting("float32", "static", 1)]  # two or three seconds a decoder on an H100
# A decoder of 16 rows has graphs of 1, 4 and 16, and each a canary.
CANARY = [Setting("float32", "static", 16, temperature=1)]
# The likeliest to be wrong first: time may run out.
SETTINGS = [
    Setting("bfloat16", "static", 16, temperature=1),
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
    pool: CachePool = field(default_factory=CachePool)  # of the caches

    @cached_property
    def plain(self) -> list[tuple[int, ...]]:
        """The target's own greedy answers."""
        models, greedy = self.models, SamplingSettings(temperature=0)
        return [
            run_generate(models[0], [each], greedy, 0, Assistance()).answers[0]
            for each in self.requests
        ]

    def decoders(self, names: Iterable[str]) -> dict[str, AnyDecoder]:
        """Decoders of ``conf/decoder``, with room for all before one is recorded."""
        built = {name: self._decoder(name) for name in names}
        for each in built.values():
            each.check_and_reserve(self.requests)
        return built

    def _decoder(self, name: str) -> AnyDecoder:
        target, draft = self.models
        config = read_decoder(decoder_settings(name))
        heads = None
        if config.heads:
            folder = EMBEDDED / HEADS[config.heads].removeprefix("embedded:")
            heads = load_heads(str(folder), target.device, target.dtype)
        sampling, rows = SamplingSettings(self.setting.temperature), self.setting.batch
        return config.build(target, [draft] * config.drafts, sampling, rows, self.pool, heads)

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
    resolved: dict[str, Any] = apply_tree_shorthand(settings, spec)
    return resolved


def names() -> list[str]:
    """Decoders with one right greedy answer: the target's own, or beam search's."""
    found = []
    for path in sorted((ROOT / "conf" / "decoder").glob("*.yaml")):
        rule = yaml.safe_load(path.read_text(encoding="utf-8"))["verifier"]["rule"]
        if rule not in ANOTHERS and path.stem not in UNTRAINED:
            mark = read_decoder(decoder_settings(path.stem)).verifier.mark
            if mark == "exact" or rule == BEAM_SEARCH:
                found.append(path.stem)
    return found


def tried(bench: Bench, name: str, decoder: AnyDecoder, cpu: Bench) -> Row:
    """One decoder under one setting."""
    start_s = time.monotonic()
    prepare([decoder], bench.requests)
    answers = bench.answers(decoder)
    seconds, right = time.monotonic() - start_s, bench.plain
    ran = {**how_it_ran(decoder), "s": round(seconds, 1)}
    if bench.setting.temperature:
        return ran
    if name == BEAM_SEARCH:
        right = cpu.answers(cpu.decoders([name])[name])
    pairs = zip(bench.requests, right, answers, strict=True)
    differences = [find_first_difference(bench.models[0], *pair) for pair in pairs]
    apart = [difference for difference in differences if difference]
    near_ties = sum(difference.near_tie for difference in apart)
    counts = {"equal": len(answers) - len(apart), "near_ties": near_ties}
    return {**counts, "wrong": len(apart) - near_ties, **ran}


def engine_rows(
    settings: Sequence[Setting], options: argparse.Namespace, known: set[tuple[str, ...]]
) -> Iterator[Row]:
    """Every decoder under every setting that has not been tried."""
    requests = embedded_requests(options.prompts, options.new_tokens)
    cpu = Bench(Setting("float32", "none", 1), embedded_pair(), requests)
    for setting in settings:
        place = options.device, setting.dtype, setting.compile, setting.label
        missing = [name for name in options.decoders if (*place, name) not in known]
        if setting.dtype != "float32" or setting.temperature:  # sums over beams have their own ties
            missing = [name for name in missing if name != BEAM_SEARCH]
        if not missing:
            continue
        models = embedded_pair(setting.compile, options.device, setting.dtype)
        bench = Bench(setting, models, requests)
        for name, decoder in bench.decoders(missing).items():
            row = dict(zip(COLUMNS, (*place, name), strict=False))
            try:
                yield row | tried(bench, name, decoder, cpu)
            except Exception as error:  # the others go on
                yield row | {"failed": to_one_line(error)}


def law_rows(options: argparse.Namespace, known: set[tuple[str, ...]]) -> Iterator[Row]:
    """The distribution of sampled answers, on the device's generators."""
    warm = SamplingSettings(temperature=1.0)
    for name in LAWS:
        place = options.device, "float32", "none", "law", name
        if place not in known:
            start_s = time.monotonic()
            config = read_decoder(decoder_settings(name))
            chance = sample_decoder_p_value(
                config, warm, samples=options.samples, device=options.device
            )
            seconds = round(time.monotonic() - start_s, 1)
            wrong = int(chance < FALSE_ALARM_RATE)
            row = dict(zip(COLUMNS, place, strict=False))
            yield row | {"wrong": wrong, "p_value": f"{chance:.2g}", "s": seconds}


def main() -> int:
    """Tries what was not tried; exit status 1 where a decoder is wrong or fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--decoders", nargs="+", default=names())
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "benchmarks")
    options = parser.parse_args()
    path = options.output / "gpu-correct.csv"
    rows: list[Row] = list(read_csv(path))
    known = {tuple(row[column] for column in COLUMNS[:5]) for row in rows}
    stages = (
        law_rows(options, known),
        engine_rows([*FIRST, *CANARY, *SETTINGS], options, known),
    )
    for row in chain(*stages):
        print(*(f"{name} {value}" for name, value in row.items()), sep=", ", flush=True)
        rows.append(row)
        write_csv(path, rows, COLUMNS)
    wrong = sum(int(row.get("wrong") or 0) for row in rows)
    refused, failed = (sum(bool(row.get(kind)) for row in rows) for kind in ("refused", "failed"))
    print(f"{len(rows)} rows, {wrong} wrong, {failed} failed, {refused} refused: {path}")
    return int(wrong + failed > 0)


if __name__ == "__main__":
    sys.exit(main())
