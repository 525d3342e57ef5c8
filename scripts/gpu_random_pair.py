"""A published table's speeds at true size: ``python scripts/gpu_random_pair.py``.

Needs torch and transformers only, and no weights: Llama-2-7B and a 68M draft are made of seeded
noise on the device. Each row of the table (RSD, experiment 1: 33 rows) accepts with the probability
that gives its published block efficiency, and does all the work that it would otherwise do, its own
rule included. Prompts are random token ids, interleaved across the rows. The CSV has the paper's
A100 token rates beside ours; every speculative row says ``simulated``. ``--tiny`` is a rehearsal on
a CPU that takes seconds.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from spec_bench.core.warp import SamplingSettings  # noqa: E402
from spec_bench.decode.build import build_decoder, resolve_spec  # noqa: E402
from spec_bench.decode.decoder import Decoder  # noqa: E402
from spec_bench.engine.loading import DTYPES, ModelSpec, load_model  # noqa: E402
from spec_bench.engine.model import COMPILE, HuggingFaceModel  # noqa: E402
from spec_bench.engine.pool import CachePool  # noqa: E402
from spec_bench.records import Generation, Request  # noqa: E402
from spec_bench.verify.simulated import constant_acceptance  # noqa: E402

REFERENCE = ROOT / "experiments" / "rsd" / "reference" / "rsd.csv"
TEMPERATURE = 0.3  # of the paper's XSum and WMT tables
_LM = {"kind": "language_model"}
_RECURSIVE = {"rule": "recursive_rejection", "replacement": False}
DECODERS: dict[str, dict[str, Any]] = {
    "ar": {"drafter": {"kind": "none"}, "tree": {"policy": "root"}, "verifier": _RECURSIVE},
    "sd": {"drafter": _LM, "tree": {"policy": "chain"}, "verifier": _RECURSIVE},
    "spectr": {"drafter": _LM, "tree": {"policy": "iid_paths"}, "verifier": {"rule": "k_seq"}},
    "rsd_c": {
        "drafter": _LM,
        "tree": {"policy": "widths", "replacement": False},
        "verifier": _RECURSIVE,
    },
    "rsd_s": {"drafter": _LM, "tree": {"policy": "stochastic_beam"}, "verifier": _RECURSIVE},
}

Published = Mapping[str, str]


def published_rows(table: int) -> list[Published]:
    """The rows of one of the paper's tables that have a block efficiency, in printed order."""
    with REFERENCE.open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["table"] == str(table)]
    if not rows:
        raise ValueError(f"{REFERENCE.name} has no table {table}")
    return [row for row in rows if row["block_efficiency"]]


def depth_of(decoder: str, spec: str) -> int:
    """Levels of a row's tree, from its shorthand."""
    if decoder == "rsd_c":
        return spec.count("-") + 1
    return int(spec.rpartition("x")[2])


def simulated_settings(row: Published) -> dict[str, Any]:
    """A row's decoder with the acceptance that its published block efficiency implies."""
    name, spec = row["decoder"], row["spec"]
    settings = resolve_spec({"name": name, **DECODERS[name]}, spec)
    if name != "ar":
        tau = float(row["block_efficiency"])
        settings["verifier"] = {
            "rule": "simulated",
            "acceptance": constant_acceptance(tau, depth_of(name, spec)),
            "computed": settings["verifier"],
        }
    return settings


def random_requests(options: argparse.Namespace, vocab: int) -> list[Request]:
    """Prompts of random token ids that nothing ends before the limit."""
    draw = random.Random(options.seed)
    return [
        Request(
            str(number),
            tuple(draw.randrange(vocab) for _ in range(options.prompt_tokens)),
            options.new_tokens,
        )
        for number in range(options.prompts)
    ]


def load_pair(options: argparse.Namespace) -> tuple[HuggingFaceModel, HuggingFaceModel]:
    """Target and draft, of two seeds."""
    specs = (
        ModelSpec(
            f"random:{name}", options.dtype, options.device, None, None, options.compile, seed
        )
        for seed, name in enumerate((options.target, options.draft))
    )
    target, draft = (load_model(spec) for spec in specs)
    if target.vocab_size != draft.vocab_size:
        raise ValueError(f"{options.target} and {options.draft} have different vocabularies")
    return target, draft


def measured(generations: Sequence[Generation]) -> dict[str, float]:
    """Ratios of sums over all prompts of a row."""
    steps = [step for generation in generations for step in generation.steps]
    decode_s = sum(g.decode_s for g in generations)
    draft_s, target_s = sum(g.draft_s for g in generations), sum(g.target_s for g in generations)
    return {
        "block_efficiency": sum(step.accepted + 1 for step in steps) / len(steps),
        "token_rate": sum(len(g.tokens) for g in generations) / decode_s,
        "host_overhead": 1 - (draft_s + target_s) / decode_s,
        "draft_share": draft_s / decode_s,
    }


def table_rows(
    rows: Sequence[Published],
    built: Sequence[Decoder],
    done: Sequence[Sequence[Generation]],
    origin: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Ours beside the paper's; the first row is the autoregressive one."""
    table, baseline = [], measured(done[0])
    for row, decoder, generations in zip(rows, built, done, strict=True):
        ours = measured(generations)
        settings = simulated_settings(row)["verifier"]
        rate = float(row["token_rate"]) if row["token_rate"] else None
        table.append(
            {
                "decoder": row["decoder"],
                "spec": row["spec"],
                "lossless": decoder.lossless,
                "simulated_acceptance": settings.get("acceptance", ""),
                "block_efficiency": ours["block_efficiency"],
                "paper_block_efficiency": row["block_efficiency"],
                "token_rate": ours["token_rate"],
                "paper_token_rate_a100": row["token_rate"],
                "speedup": ours["token_rate"] / baseline["token_rate"],
                "paper_speedup_a100": rate / float(rows[0]["token_rate"]) if rate else "",
                "host_overhead": ours["host_overhead"],
                "draft_share": ours["draft_share"],
                "prompts": len(generations),
                **origin,
            }
        )
    return table


def write_csv(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """The whole file or none of it; floats with six digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    with partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(table[0]), lineterminator="\n")
        writer.writeheader()
        for row in table:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    os.replace(partial, path)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Decodes every prompt with every row in turn; the CSV is rewritten after each prompt."""
    target, draft = load_pair(options)
    sampling, pool = SamplingSettings(temperature=TEMPERATURE), CachePool()
    rows, asked = published_rows(options.table), random_requests(options, target.vocab_size)
    built = [
        build_decoder(simulated_settings(row), target, [draft], sampling, 1, pool) for row in rows
    ]
    cuda = options.device.startswith("cuda")
    origin = {
        "target": f"random:{options.target}",
        "draft": f"random:{options.draft}",
        "table": options.table,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name(options.device) if cuda else options.device,
        "compile": options.compile,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
    }
    longest = len(asked[0].prompt_ids)
    for decoder in built:
        decoder.reserve(decoder.slots_needed(longest, options.new_tokens))
    for decoder in built:
        decoder.generate(asked[:1], options.seed)
    done: list[list[Generation]] = [[] for _ in built]
    table: list[dict[str, Any]] = []
    for number, request in enumerate(asked):
        for place in range(len(built)):
            index = (place + number) % len(built)
            done[index] += built[index].generate([request], options.seed)
        table = table_rows(rows, built, done, origin)
        write_csv(options.output, table)
        print(f"prompt {number + 1} of {len(asked)}: {options.output}", flush=True)
    return table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ``--tiny`` sets what was not given to a size for a CPU."""
    tiny = "--tiny" in (sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="tiny architectures on the CPU")
    parser.add_argument("--target", default="llama_tiny" if tiny else "llama2_7b")
    parser.add_argument("--draft", default="llama_tiny" if tiny else "llama_68m")
    parser.add_argument("--table", type=int, default=1, help="of RSD, 1 to 27 or 28 to 54")
    parser.add_argument("--device", default="cpu" if tiny else "cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="float32" if tiny else "bfloat16")
    parser.add_argument("--compile", choices=COMPILE, default="none")
    parser.add_argument("--prompts", type=int, default=1 if tiny else 4)
    parser.add_argument("--prompt-tokens", type=int, default=16 if tiny else 512)
    parser.add_argument("--new-tokens", type=int, default=12 if tiny else 128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results") / "random_pair.csv")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs and prints the table."""
    for row in run(parse(arguments)):
        print(
            f"{row['decoder']:>7} {row['spec']:<12} tau {row['block_efficiency']:.2f} "
            f"(paper {row['paper_block_efficiency']})  {row['token_rate']:.1f} tok/s "
            f"(paper, A100 {row['paper_token_rate_a100']})  speedup {row['speedup']:.2f}"
        )


if __name__ == "__main__":
    main()
