"""Joules per token by all meters side by side: ``python scripts/gpu/energy.py``.

Needs torch and transformers, for ``nvml`` also nvidia-ml-py, and no weights: OPT-13B and OPT-125M
(the DSBD paper's second pair) are made of seeded noise on the device. Every decode window is
metered by every meter at once, so that two rows of a decoder differ in the meter alone. Decoders
with a draft accept with a stated probability, since models of noise do not agree; they do all the
work that they would otherwise do, and their rows say ``simulated``. A meter that has no number says
why. ``--tiny`` is a rehearsal on a CPU that takes seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.gpu.random_pair import load_pair, random_requests, write_csv
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.blocks import resolve_spec
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.engine.capture import COMPILE
from spec_bench.engine.loading import DTYPES
from spec_bench.engine.pass_counts import passes_of
from spec_bench.engine.pool import CachePool
from spec_bench.measure.energy import (
    EnergyMeter,
    EnergyReading,
    build_meter,
    phase_delay_s,
)
from spec_bench.measure.energy import meter as METERS
from spec_bench.records.types import Generation

ROOT = Path(__file__).resolve().parents[2]

CYCLE_S = 0.1  # of the power sensor of an A100 or H100 (arXiv:2312.02741)


class SideBySide:
    """Meters that measure the same windows, each in a thread so that none waits for another.

    Args:
        meters: which.
    """

    def __init__(self, meters: Sequence[EnergyMeter]) -> None:
        self.meters = meters
        self.readings: list[EnergyReading] = []
        self._threads = ThreadPoolExecutor(max(1, len(meters)))

    def open(self) -> None:
        list(self._threads.map(lambda meter: meter.open(), self.meters))

    def begin(self) -> None:
        list(self._threads.map(lambda meter: meter.begin(), self.meters))

    def end(self) -> None:
        self.readings = list(self._threads.map(lambda meter: meter.end(), self.meters))

    def close(self) -> None:
        for meter in self.meters:
            meter.close()
        self._threads.shutdown()


def decoder_settings(title: str, acceptance: float | None) -> dict[str, Any]:
    """A decoder's config by ``NAME`` or ``NAME:SPEC``, its acceptance stated where it drafts."""
    name, _, spec = title.partition(":")
    path = ROOT / "conf" / "decoder" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise ValueError(f"unknown decoder {name!r}; known: {known}")
    settings: dict[str, Any] = resolve_spec(
        yaml.safe_load(path.read_text(encoding="utf-8")), spec or None
    )
    if acceptance is not None and read_decoder(settings).drafts and "rule" in settings["verifier"]:
        computed = settings["verifier"]
        settings["verifier"] = {
            "rule": "simulated",
            "acceptance": acceptance,
            "computed": computed,
        }
    return settings


def reasons_of(readings: Sequence[EnergyReading]) -> str:
    """Why there is no number, or what to mind about it, with how many windows it concerns."""
    said = [reading.reason or reading.flag for reading in readings]
    return "; ".join(
        f"{text} ({said.count(text)} of {len(said)} windows)"
        for text in dict.fromkeys(said)
        if text
    )


def table_row(
    meter: EnergyMeter, generations: Sequence[Generation], readings: Sequence[EnergyReading]
) -> dict[str, Any]:
    """One decoder by one meter; a window without a number leaves the cell empty."""
    tokens = sum(len(generation.tokens) for generation in generations)
    energy_j = [r.energy_j for r in readings if r.energy_j is not None]
    check_j = [r.check_j for r in readings if r.check_j is not None]
    whole, checked = len(energy_j) == len(readings), len(check_j) == len(readings)
    seconds = sum(generation.decode_s for generation in generations)
    return {
        "meter": meter.name,
        "energy_j_per_token": sum(energy_j) / tokens if whole else "",
        "energy_check_j_per_token": sum(check_j) / tokens if checked else "",
        "mean_power_w": sum(energy_j) / sum(r.window_s for r in readings) if whole else "",
        "idle_power_w": "" if meter.idle_power_w is None else meter.idle_power_w,
        "energy_period_s": "" if meter.period_s is None else meter.period_s,
        "windows": len(readings),
        "mean_window_s": sum(reading.window_s for reading in readings) / len(readings),
        "delivered_tokens": tokens,
        "token_rate": tokens / seconds,
        "reason": reasons_of(readings),
    }


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Decodes every prompt with every decoder in turn; the CSV is rewritten after each prompt."""
    settings = [decoder_settings(title, options.acceptance) for title in options.decoders]
    meters = SideBySide([build_meter({"meter": name}, options.ordinals) for name in options.meters])
    meters.open()
    try:
        return decode(options, settings, meters)
    finally:
        meters.close()


def decode(
    options: argparse.Namespace, settings: Sequence[Mapping[str, Any]], meters: SideBySide
) -> list[dict[str, Any]]:
    """The body of ``run``, with the meters open and the idle power measured."""
    target, draft = load_pair(options)
    pool, sampling = CachePool(), SamplingSettings(temperature=1.0)
    built = [build_decoder(each, target, [draft], sampling, 1, pool) for each in settings]
    asked = random_requests(options, target.vocab_size)
    for decoder in built:
        decoder.reserve(decoder.slots_needed(options.prompt_tokens, options.new_tokens))
    for decoder in built:
        decoder.generate(asked[:1], options.seed)
    pool.prepare(1, options.prompt_tokens)
    cuda = options.device.startswith("cuda")
    origin = {
        "target": f"random:{options.target}",
        "draft": f"random:{options.draft}",
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name(options.device) if cuda else options.device,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
    }
    done: list[list[Generation]] = [[] for _ in built]
    read: list[list[list[EnergyReading]]] = [[] for _ in built]
    table: list[dict[str, Any]] = []
    for number, request in enumerate(asked):
        for place in range(len(built)):
            index = (place + number) % len(built)
            time.sleep(phase_delay_s(number, CYCLE_S))
            done[index] += built[index].generate([request], options.seed, None, meters)
            read[index].append(meters.readings)
        table = [
            {
                "decoder": title,
                "lossless": decoder.lossless,
                **table_row(meter, generations, [window[which] for window in windows]),
                "passes_of_all": passes_of((target, draft)).share,
                "refused": passes_of((target, draft)).refused,
                **origin,
            }
            for title, decoder, generations, windows in zip(
                options.decoders, built, done, read, strict=True
            )
            for which, meter in enumerate(meters.meters)
            if windows
        ]
        write_csv(options.output, table)
        print(f"prompt {number + 1} of {len(asked)}: {options.output}", flush=True)
    return table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ``--tiny`` sets what was not given to a size for a CPU."""
    tiny = "--tiny" in (sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="tiny architectures on the CPU")
    parser.add_argument("--target", default="opt_tiny" if tiny else "opt_13b")
    parser.add_argument("--draft", default="opt_tiny" if tiny else "opt_125m")
    parser.add_argument("--decoders", nargs="+", default=["ar", "sd:3"], help="NAME or NAME:SPEC")
    parser.add_argument("--acceptance", type=float, default=0.75, help="stated; negative: none")
    meters = ["none", "rapl"] if tiny else ["nvml", "nvidia_smi", "paper", "rapl"]
    parser.add_argument("--meters", nargs="+", choices=list(METERS), default=meters)
    parser.add_argument("--device", default="cpu" if tiny else "cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="float32" if tiny else "bfloat16")
    parser.add_argument("--compile", choices=COMPILE, default="none")
    parser.add_argument("--prompts", type=int, default=2 if tiny else 16)
    parser.add_argument("--prompt-tokens", type=int, default=16 if tiny else 512)
    parser.add_argument("--new-tokens", type=int, default=12 if tiny else 256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results") / "gpu_energy.csv")
    options = parser.parse_args(arguments)
    options.acceptance = None if options.acceptance < 0 else options.acceptance
    kind, _, index = options.device.partition(":")
    options.ordinals = (int(index or 0),) if kind == "cuda" else None
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and prints the table; exit status 1 where a kind of pass was refused."""
    table = run(parse(arguments))
    for row in table:
        joules, idle_w = row["energy_j_per_token"], row["idle_power_w"]
        print(
            f"{row['decoder']:<10} {row['meter']:<10} "
            f"{f'{joules:.3f}' if joules != '' else '-':>8} J/token  "
            f"idle {f'{idle_w:.1f}' if idle_w != '' else '-':>6} W  "
            f"{row['token_rate']:.1f} tok/s  {row['reason']}"
        )
    return int(any(row["refused"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
