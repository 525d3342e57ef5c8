"""The papers' claims on a public pair and real questions, at batch 1.

    make smollm2
    python scripts/bench/public_pair.py QUESTIONS.jsonl [--only rsd=exp2]  # an hour, goes on alike
    python scripts/bench/public_pair.py --claims                  # results/smollm2/claims.md

QUESTIONS.jsonl is MT-bench's ``question.jsonl`` as FastChat has it; its first turns are asked.
Tables go to ``results/smollm2/<recipe>``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "results/smollm2"
KS = ",".join(f"mcsd_wor:{k}" for k in (1, 2, 4, 8, 16))
RULES = "sd:3,block:3,spectr:2x3,optimal:2x3,specinfer:2-2-2,rsd_c:2-2-2,traversal:2-2-2"
BEAMS = "sd:3,beam_sampling:2,beam_sampling:4,dsbd:3x3@0.9,dsbd:6x3@0.9,dsbd_one_cache:4x3@0.9"
# Recipe, what it is cut to, temperatures.
RECIPES = (
    ("rsd=exp1", ('length=["2","3"]',), "1"),
    ("rsd=exp2", ("budget=[6,14]",), "1"),
    ("mcsd=acceptance", (f"cells=[{KS}]",), "0,1"),
    ("mcsd=ablation", (), "1"),
    ("dsbd=fronts", (f"cells=[{BEAMS}]", "prompts=16", "generation.max_new_tokens=32"), "1"),
    ("beyond=verification", (f"cells=[{RULES}]",), "1"),
)
ABOUT = """\
# The papers' claims on SmolLM2

Made by `python scripts/bench/public_pair.py --claims` from the rows beside this file:
SmolLM2-135M-Instruct (4-bit weights, dequantised) with its draft of 7.9 million parameters, batch
size 1, MT-bench's first turns (24 of them, 16 for DSBD), answers of 48 tokens (DSBD: 32), no
score. Rates and speed-ups are of one thread on one of two cores; the other one worked, too. Here
`rsd-exp2` shares rows with `rsd-exp1`: two sittings. On a CPU a pass of many tokens costs several
of one: what a paper says of token rates on its GPUs is not to be expected here.
"""


def main() -> int:
    """Runs what is missing, or writes the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("questions", nargs="?", type=Path)
    parser.add_argument("--only", help="a recipe, such as rsd=exp2")
    parser.add_argument("--claims", action="store_true")
    options = parser.parse_args()
    if options.claims:
        (ROOT / RESULTS / "claims.md").write_text(page(), encoding="utf-8")
        return 0
    if options.questions is None:
        parser.error("QUESTIONS.jsonl or --claims")
    common = [
        "pair=smollm2", "task=spec_bench", "task.name=mt_bench_questions",
        f"task.source.path={options.questions.resolve()}", "task.sample=random",
        "task.later_turns=none", "engine.threads=1", "energy=none", "seed=0", "prompts=24",
        "generation.max_new_tokens=48",
    ]  # fmt: skip
    status = 0  # each in a folder of its own: a table is of one sitting
    for recipe, cut, temperatures in RECIPES:
        if options.only in (None, recipe):
            folder = ROOT / "outputs/public" / (name := recipe.replace("=", "-"))
            asked = [recipe, *common, f"generation.temperature={temperatures}", *cut]
            command = [sys.executable, "-m", "spec_bench", "-m", *asked, f"results={folder}"]
            status = max(status, subprocess.run(command, cwd=ROOT, check=False).returncode)
            shutil.copytree(folder / name, ROOT / RESULTS / name, dirs_exist_ok=True)
    return status


def page() -> str:
    """The claims of all papers, as the report says them."""
    parts = [ABOUT]
    for paper in ("rsd", "mcsd", "dsbd"):
        command = [sys.executable, "-m", "spec_bench.report", "checks", paper, "--results", RESULTS]
        told = subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True,
            env={**os.environ, "COLUMNS": "130"},
        ).stdout  # fmt: skip
        lines = "\n".join(line.rstrip() for line in told.strip().splitlines())
        parts.append(f"## {paper.upper()}\n\n```\n{lines}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
