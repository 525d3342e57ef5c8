"""Published tables' speeds at true size: ``python scripts/gpu/random_pair.py``.

Needs torch, transformers and pydantic only, and no weights: target and draft of the papers'
architectures are made of seeded noise on the device, one pair after the other. Each row of a pair's
table (RSD, experiment 1: 33 rows) accepts with the probability that gives its published block
efficiency, and does all the work that it would otherwise do, its own rule included. Prompts are
random token ids, interleaved across the rows. The CSV has the paper's A100 token rates beside ours,
and how near each row comes to the memory bandwidth measured in the same run; every speculative row
says ``simulated``, and a pair that does not fit is a row that says so. After ``--minutes`` no
further prompt is begun, and the rows say ``partial``. ``--cells`` takes some of the rows, and
``--tiny`` rehearses on a CPU in seconds. Llama 2 has the draft of ``pair=llama2_7b``: the paper's
was never published.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import how_it_ran, prepare
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import apply_tree_shorthand, build_decoder
from spec_bench.decode.decoder import Decoder
from spec_bench.engine.cache import CachePool
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import DTYPES, ModelSpec, load_model
from spec_bench.engine.plain import COMPILE
from spec_bench.engine.random_model import make_random_module
from spec_bench.measure.bandwidth import get_free_bytes, measure_bytes_per_s
from spec_bench.measure.roofline import ForwardPassByteCounts, count_decode_bytes, count_model_bytes
from spec_bench.metrics import CellRecords, metric
from spec_bench.records.types import Generation, Request
from spec_bench.system import files
from spec_bench.verify.simulated import solve_uniform_acceptance
from spec_bench.vocabulary.published import pivot_numbers, read_published_numbers
from spec_bench.vocabulary.spec import parse_tree_spec

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "experiments" / "rsd" / "reference.csv"
# By target: the architecture of its draft, and the paper's table on XSum.
PAIRS = {
    "llama2_7b": ("llama_160m", 1),
    "llama2_13b": ("llama_160m", 3),
    "llama2_70b": ("llama_160m", 5),
    "opt_13b": ("opt_125m", 16),
    "opt_30b": ("opt_125m", 18),
    "opt_66b": ("opt_125m", 20),
    "llama_tiny": ("llama_tiny", 1),
    "opt_tiny": ("opt_tiny", 16),
}
# What is printed of a row: title, column, format.
SHOWN = [
    ("decoder", "decoder", ""),
    ("spec", "spec", ""),
    ("tau", "block_efficiency", ".2f"),
    ("paper", "paper_block_efficiency", ""),
    ("tok/s", "token_rate", ".1f"),
    ("A100", "paper_token_rate_a100", ""),
    ("speedup", "speedup", ".2f"),
    ("of MBSU", "attained_mbsu", ".0%"),
    ("ms", "iteration_ms", ".2f"),
    ("bound", "memory_bound_ms", ".2f"),
    ("attained", "attained", ".0%"),
]

TEMPERATURE = 0.3  # of the paper's XSum and WMT tables
HEADROOM = 1.1  # of the weights' bytes: caches, activations

Published = Mapping[str, str]


def published_rows(table: int) -> list[Published]:
    """The rows of one of the paper's tables that have a block efficiency, in printed order."""
    rows = pivot_numbers(
        row for row in read_published_numbers(REFERENCE) if row["table"] == str(table)
    )
    if not rows:
        raise ValueError(f"{REFERENCE.name} has no table {table}")
    return [row for row in rows if row["block_efficiency"]]


def simulated_settings(row: Published) -> dict[str, Any]:
    """A row's decoder with the acceptance that its published block efficiency implies."""
    name, spec = row["decoder"], row["spec"]
    path = ROOT / "conf" / "decoder" / f"{name}.yaml"
    settings = apply_tree_shorthand(yaml.safe_load(path.read_text(encoding="utf-8")), spec)
    if name != "ar":
        tau = float(row["block_efficiency"])
        settings["verifier"] = {
            "rule": "simulated",
            "acceptance": solve_uniform_acceptance(tau, parse_tree_spec(spec).depth),
            "computed": settings["verifier"],
        }
    return settings


def measured(
    row: Published,
    first: Published,
    decoder: Decoder,
    generations: Sequence[Generation],
    baseline: Sequence[Generation],
) -> dict[str, Any]:
    """Ours beside the paper's; ``first`` and ``baseline`` are the autoregressive row's."""
    cell = CellRecords(
        generations,
        baseline,
        draft_calls=decoder.draft_calls,
        parameter_ratio=decoder.parameter_ratio,
    )
    names = ("block_efficiency", "token_rate", "speedup", "mbsu", "host_overhead")
    found = {name: metric[name].value(cell) for name in names}
    paper = float(row["token_rate"]) if row["token_rate"] else None
    draft_share = sum(g.draft_s for g in generations) / sum(g.decode_s for g in generations)
    if decoder.iteration_counts.recorded:  # an iteration is one graph
        found["host_overhead"] = draft_share = ""
    return {
        "simulated_acceptance": simulated_settings(row)["verifier"].get("acceptance", ""),
        "block_efficiency": found["block_efficiency"],
        "paper_block_efficiency": row["block_efficiency"],
        "token_rate": found["token_rate"],
        "paper_token_rate_a100": row["token_rate"],
        "speedup": found["speedup"],
        "paper_speedup_a100": paper / float(first["token_rate"]) if paper else "",
        "mbsu": found["mbsu"],
        "attained_mbsu": found["speedup"] / found["mbsu"],
        "host_overhead": found["host_overhead"],
        "draft_share": draft_share,
        "prompts": len(generations),
    }


def attained(
    costs: Sequence[ForwardPassByteCounts],
    generations: Sequence[Generation],
    prompt_tokens: int,
    bytes_per_s: float,
) -> dict[str, float]:
    """Milliseconds of an iteration, and those that its bytes alone take; all passes included."""
    calls = sum(len(each.steps) for each in generations)
    target, *drafts = costs
    moved = (
        sum(count_decode_bytes(each, prompt_tokens, target, drafts) for each in generations) / calls
    )
    bound_ms, iteration_ms = (
        1e3 * moved / bytes_per_s,
        1e3 * sum(each.decode_s for each in generations) / calls,
    )
    return {
        "bytes_per_iteration": round(moved),
        "memory_bound_ms": bound_ms,
        "iteration_ms": iteration_ms,
        "attained": bound_ms / iteration_ms,
        "bandwidth_gb_s": bytes_per_s / 1e9,
    }


def device_name(options: argparse.Namespace) -> str:
    """``cpu``, or the GPU's name."""
    cuda = options.device.startswith("cuda")
    return torch.cuda.get_device_name(options.device) if cuda else options.device


def random_requests(options: argparse.Namespace, count: int, vocab: int) -> list[Request]:
    """Prompts of random token ids that nothing ends before the limit."""
    draw = random.Random(options.seed)
    return [
        Request(
            str(number),
            tuple(draw.randrange(vocab) for _ in range(options.prompt_tokens)),
            options.new_tokens,
        )
        for number in range(count)
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


def misfit(options: argparse.Namespace) -> str:
    """Why a pair does not fit into the free memory, from its parameter counts; "" where it does."""
    modules = [
        make_random_module(f"random:{name}", DTYPES[options.dtype], "meta", 0)
        for name in (options.target, options.draft)
    ]
    weights = sum(p.nbytes for module in modules for p in module.parameters())
    free = options.memory_gib * 2**30 or get_free_bytes(torch.device(options.device))
    if weights * HEADROOM <= free:
        return ""
    return f"{weights / 2**30:.1f} GiB of weights do not fit into {free / 2**30:.1f} GiB"


def decode_pair(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Decodes every prompt with every row of a pair in turn; the table after each prompt."""
    target, draft = load_pair(options)
    sampling, pool = SamplingSettings(temperature=TEMPERATURE), CachePool()
    asked = random_requests(options, options.prompts, target.vocab_size)
    rows = [
        row
        for row in published_rows(options.table)
        if not options.cells or f"{row['decoder']}:{row['spec']}" in options.cells
    ]
    built = [
        build_decoder(simulated_settings(row), target, [draft], sampling, 1, pool) for row in rows
    ]
    costs = [count_model_bytes(model.module, model.bytes_per_slot) for model in (target, draft)]
    bytes_per_s = measure_bytes_per_s(target.module) or float("nan")
    settings = {
        "table": options.table,
        "dtype": options.dtype,
        "device": device_name(options),
        "compile": options.compile,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
    }
    prepare(built, asked)
    done: list[list[Generation]] = [[] for _ in built]
    for number, request in enumerate(asked):
        if number and time.monotonic() > options.ends_s:
            return
        for place in range(len(built)):
            index = (place + number) % len(built)
            done[index] += built[index].generate([request], options.seed)
        yield [
            {
                **names(options),
                "status": "complete" if number + 1 == len(asked) else "partial",
                "reason": "",
                "decoder": row["decoder"],
                "spec": row["spec"],
                "lossless": decoder.lossless,
                **measured(row, rows[0], decoder, done[index], done[0]),
                **attained(
                    costs[: 1 + len(decoder.drafts)],
                    done[index],
                    options.prompt_tokens,
                    bytes_per_s,
                ),
                **how_it_ran(decoder),
                **settings,
            }
            for index, (row, decoder) in enumerate(zip(rows, built, strict=True))
        ]


def names(options: argparse.Namespace) -> dict[str, str]:
    """The columns that name a pair."""
    return {"target": f"random:{options.target}", "draft": f"random:{options.draft}"}


def pair_options(options: argparse.Namespace, target: str) -> argparse.Namespace:
    """The options of one pair, draft and table filled in; a ValueError where none are known."""
    draft, table = PAIRS.get(target, (None, None))
    draft, table = options.draft or draft, options.table or table
    if not draft or not table:
        raise ValueError(f"{target!r} needs --draft and --table; only {', '.join(PAIRS)} have them")
    return argparse.Namespace(**{**vars(options), "target": target, "draft": draft, "table": table})


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Pair after pair; the CSV is rewritten after each prompt."""
    pairs = [pair_options(options, target) for target in options.targets]
    table: list[dict[str, Any]] = []
    for pair in pairs:
        gc.collect()  # what the pair before left
        if pair.compile != "none":
            torch.compiler.reset()
        if pair.device.startswith("cuda"):
            torch.cuda.empty_cache()
        rows, reason = [], misfit(pair)
        try:
            for rows in () if reason else decode_pair(pair):
                write_csv(options.output, [*table, *rows])
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
        if reason:
            rows = [{**names(pair), "status": "failed", "reason": reason}]
        show(rows)
        table += rows
        write_csv(options.output, table)
    return table


def write_csv(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """The whole file or none of it; floats with six digits."""
    columns = list(max(table, key=len))  # a row of a pair that failed has but a few of them
    rows = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in table]
    files.write_csv(path, rows, columns)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a pair's rows below one another, or why there are none."""
    print(f"{rows[0]['target']} with {rows[0]['draft']}: {rows[0]['reason'] or 'simulated'}")
    if rows[0]["status"] != "failed":
        print(*(f"{title:>9}" for title, _, _ in SHOWN))
        for row in rows:
            cells = (f"{row[key]:{form}}" if row[key] != "" else "" for _, key, form in SHOWN)
            print(*(f"{cell:>9}" for cell in cells), flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ``--tiny`` sets what was not given to a size for a CPU."""
    tiny = "--tiny" in (sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="tiny architectures on the CPU")
    targets = ["llama_tiny", "opt_tiny"] if tiny else ["llama2_7b", "llama2_13b", "opt_30b"]
    parser.add_argument("--targets", nargs="+", default=targets, help="architectures, in turn")
    parser.add_argument("--cells", nargs="+", help="DECODER:SPEC of a table's rows; ar:- is one")
    parser.add_argument("--draft", help="of all targets; that of the paper's pair if not given")
    parser.add_argument(
        "--table", type=int, help="of RSD, 1 to 54; XSum's of each pair if not given"
    )
    parser.add_argument(
        "--memory-gib", type=float, default=0, help="for weights; all that is free if not given"
    )
    parser.add_argument("--device", default="cpu" if tiny else "cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="float32" if tiny else "bfloat16")
    parser.add_argument("--compile", choices=COMPILE, default="none")
    parser.add_argument("--prompts", type=int, default=1 if tiny else 4)
    parser.add_argument("--prompt-tokens", type=int, default=16 if tiny else 512)
    parser.add_argument("--new-tokens", type=int, default=12 if tiny else 128)
    parser.add_argument("--minutes", type=float, default=6, help="then no prompt is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results") / "random_pair.csv")
    options = parser.parse_args(arguments)
    options.ends_s = time.monotonic() + 60 * options.minutes
    return options


if __name__ == "__main__":
    run(parse(None))
