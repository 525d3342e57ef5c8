"""The engine on a GPU: ``python scripts/gpu/check.py``; needs torch and transformers only.

First, every decoder's greedy tokens on the device equal those on the CPU, both in float32; where
they differ the audit tells a near-tie of the target from an error. Second, a token-rate table for
the embedded pair, prompts interleaved across decoders, as CSV.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.launches_table import described, expectation
from scripts.family.embedded_pair import (
    EMBEDDED,
    SPECS,
    Models,
    decoder,
    embedded_pair,
    embedded_requests,
)
from spec_bench.audit.greedy import first_difference
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.decoder import Decoder
from spec_bench.engine.pool import CachePool
from spec_bench.measure.pass_cost import model_cost
from spec_bench.records.types import Generation, Request
from spec_bench.system.files import write_csv

ROOT = Path(__file__).resolve().parents[2]

Answers = dict[str, list[tuple[int, ...]]]


def ready(models: Models, sampling: SamplingSettings, asked: list[Request]) -> dict[str, Decoder]:
    """All decoders over one pool of caches, with all that their passes need made ahead."""
    pool = CachePool()
    built = {name: decoder(name, models, sampling, pool) for name in SPECS}
    for each in built.values():  # all room first: what is made over a cache is lost when it grows
        each.reserve(max(each.slots_needed(len(r.prompt_ids), r.max_new_tokens) for r in asked))
    for each in built.values():
        each.generate(asked[:1], 0)
    pool.prepare(1, min(len(r.prompt_ids) for r in asked))
    return built


def passes(models: Models) -> tuple[int, int, int, int]:
    """Passes over fixed buffers, passes by the modules, recordings and refusals, of both models."""
    found = [model.static for model in models if model.static is not None]
    counts = [each.counts for each in found]
    return (
        sum(each.static for each in counts),
        sum(each.eager for each in counts),
        sum(each.captures for each in counts),
        sum(len(each.refusals) for each in found),
    )


def greedy_tokens(device: str, how: str, asked: list[Request]) -> Answers:
    """Every decoder's greedy answers in float32; says how the passes ran."""
    models = embedded_pair(how, device)
    built = ready(models, SamplingSettings(temperature=0), asked)
    before = passes(models)
    answers = {
        name: [each.generate([request], 0)[0].tokens for request in asked]
        for name, each in built.items()
    }
    ran = [after - was for after, was in zip(passes(models), before, strict=True)]
    print(f"{device} {how}: static {ran[0]}, eager {ran[1]}, recorded {ran[2]}, refused {ran[3]}")
    return answers


def count_errors(got: Answers, expected: Answers, asked: list[Request], label: str) -> int:
    """Prints how many answers are equal; near-ties of the target apart, counts the others."""
    target, _ = embedded_pair()
    errors = 0
    for name, answers in got.items():
        pairs = zip(asked, expected[name], answers, strict=True)
        found = [first_difference(target, request, want, have) for request, want, have in pairs]
        ties = [difference for difference in found if difference and difference.near_tie]
        wrong = [difference for difference in found if difference and not difference.near_tie]
        equal = len(found) - len(ties) - len(wrong)
        print(f"{label} {name} {SPECS[name]}: {equal} of {len(found)} equal, {len(ties)} near-ties")
        for difference in wrong:
            print(f"  {difference}")
        errors += len(wrong)
    return errors


def rates(device: str, dtype: str, how: str, asked: list[Request]) -> list[dict[str, object]]:
    """Block efficiency, token rate and speedup per decoder at temperature 0.3, and what
    ``scripts/gpu/plan.py`` expects of the rate.
    """
    models, sampling = embedded_pair(how, device, dtype), SamplingSettings(temperature=0.3)
    built = ready(models, sampling, asked)
    done: dict[str, list[Generation]] = {name: [] for name in built}
    for request in asked:
        for name, each in built.items():
            done[name] += each.generate([request], 0)
    known = [
        described(str(EMBEDDED / "models" / name), model_cost(model.module, model.bytes_per_slot))
        for name, model in zip(("target", "draft_distilled"), models, strict=True)
    ]
    named = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    context = sum(len(r.prompt_ids) + r.max_new_tokens / 2 for r in asked) / len(asked)
    rows: list[dict[str, object]] = []
    for name, generations in done.items():
        steps = [step for g in generations for step in g.steps]
        seconds = sum(g.decode_s for g in generations)
        forward = sum(g.draft_s + g.target_s for g in generations)
        rate = sum(len(g.tokens) for g in generations) / seconds
        tau = sum(s.accepted + 1 for s in steps) / len(steps)
        cell = name, SPECS[name], ("0.3", "1")
        expected = expectation(named, cell, *known, tau, context, how)
        rows.append(
            {
                "device": device,
                "dtype": dtype,
                "compile": how,
                "decoder": name,
                "spec": SPECS[name],
                "block_efficiency": round(tau, 3),
                "token_rate": round(rate, 1),
                "expected_token_rate": expected["expected_token_rate"],
                "speedup": round(rate / float(str(rows[0]["token_rate"])), 3) if rows else 1.0,
                "host_overhead": round(1 - forward / seconds, 3),
            }
        )
        print(*rows[-1].values())
    return rows


def main() -> int:
    """Runs both parts; exit status 1 where tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--compile", nargs="+", default=["none"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "benchmarks")
    options = parser.parse_args()
    asked = embedded_requests(options.prompts, options.new_tokens)
    expected = greedy_tokens("cpu", "none", asked)
    errors = 0
    for how in options.compile:
        got = greedy_tokens(options.device, how, asked)
        errors += count_errors(got, expected, asked, f"{options.device} {how}")
    table = [
        row
        for how in options.compile
        for dtype in options.dtypes
        for row in rates(options.device, dtype, how, asked)
    ]
    path = options.output / f"embedded-{options.device.replace(':', '')}.csv"
    write_csv(path, table, list(table[0]))
    print(path)
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
