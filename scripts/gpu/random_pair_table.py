"""The tables of ``scripts/gpu/random_pair.py``: what was printed, what was measured beside it.

Needs what torch and transformers bring along, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from spec_bench.decode.blocks import resolve_spec
from spec_bench.decode.decoder import Decoder
from spec_bench.metrics import CellRecords, metric
from spec_bench.records.types import Generation
from spec_bench.system import files
from spec_bench.verify.simulated import constant_acceptance
from spec_bench.vocabulary.published import read_published, side_by_side

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "experiments" / "rsd" / "reference.csv"
# By target: a draft of the architecture that the paper's has, and the paper's table on XSum.
PAIRS = {
    "llama2_7b": ("llama_115m", 1),
    "llama2_13b": ("llama_115m", 3),
    "llama2_70b": ("llama_115m", 5),
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
    ("target ms", "target_call_ms", ".2f"),
    ("bound", "memory_bound_ms", ".2f"),
    ("share", "target_attained", ".0%"),
    ("draft ms", "draft_ms", ".2f"),
    ("bound", "draft_memory_bound_ms", ".2f"),
    ("share", "draft_attained", ".0%"),
    ("all ms", "iteration_ms", ".2f"),
    ("bound", "iteration_memory_bound_ms", ".2f"),
    ("attained", "attained", ".0%"),
    ("model ms", "expected_ms", ".2f"),
    ("tok/s", "expected_token_rate", ".1f"),
]

Published = Mapping[str, str]


def published_rows(table: int) -> list[Published]:
    """The rows of one of the paper's tables that have a block efficiency, in printed order."""
    rows = side_by_side(row for row in read_published(REFERENCE) if row["table"] == str(table))
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
    path = ROOT / "conf" / "decoder" / f"{name}.yaml"
    settings = resolve_spec(yaml.safe_load(path.read_text(encoding="utf-8")), spec)
    if name != "ar":
        tau = float(row["block_efficiency"])
        settings["verifier"] = {
            "rule": "simulated",
            "acceptance": constant_acceptance(tau, depth_of(name, spec)),
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
        parameter_ratio=decoder.speed_ratio,
    )
    names = ("block_efficiency", "token_rate", "speedup", "mbsu", "host_overhead")
    found = {name: metric[name].value(cell) for name in names}
    paper = float(row["token_rate"]) if row["token_rate"] else None
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
        "draft_share": sum(g.draft_s for g in generations) / sum(g.decode_s for g in generations),
        "prompts": len(generations),
    }


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
