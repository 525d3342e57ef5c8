r"""The papers' claims on a public pair and real questions, at batch 1, beside the embedded pair's.

    make smollm2
    spec-bench train training=smollm2 head=redrafter head.draft_vocab=4096 pair.dtype=bfloat16
    python scripts/bench/public_pair.py QUESTIONS.jsonl [--only rsd=exp2] # four hours; resumes
    make qwen_coder
    python scripts/bench/public_pair.py QUESTIONS.jsonl --pair qwen_coder # two hours; resumes
    python scripts/bench/public_pair.py --claims                         # outputs/claims.md

QUESTIONS.jsonl is Spec-Bench's ``question.jsonl``, which has MT-bench's 80 questions and 80
texts to summarise and 80 sentences to translate; first turns are asked. Tables go to
``results/smollm2/<recipe>`` and ``results/qwen_coder/<recipe>-<questions>``.
"""

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.report.claims import check_claims
from spec_bench.report.claims.console import print_checks
from spec_bench.report.claims.verdict import Check, summarise_claims
from spec_bench.report.data.rows import read_rows
from spec_bench.report.papers.paper import load_paper
from spec_bench.system.files import list_results_files

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ("embedded", "smollm2", "qwen_coder")  # their folders below results
HEADS = "pair.heads.redrafter=results/train/smollm2_redrafter/heads"
KS = ",".join(f"mcsd_wor:{k}" for k in (1, 2, 4, 8, 16))
RULES = "sd:3,block:3,spectr:2x3,optimal:2x3,specinfer:2-2-2,rsd_c:2-2-2,traversal:2-2-2"
BEAMS = ",".join([
    "sd:3", "dsbd_one_cache:4x3@0.9", *(f"beam_sampling:{width}" for width in (1, 2, 4)),
    "dsbd:3x3@0.7", "dsbd:3x3@0.9", "dsbd:6x3@0.9",
])  # fmt: skip
TYPICAL = "cells=[redrafter:4x4,redrafter_typical:4x4]"
WIDTHS = ",".join(f"redrafter:{width}x4" for width in (1, 2, 4, 8, 16))
ROWS = "cells=[sd:3,redrafter:2x4,redrafter:8x4,{decoder:redrafter,spec:8x4,tree_attention:false}]"
BATCHED = ("prompts=32", "generation.max_new_tokens=24", "seed=0,1,2")
EXP1, EXP2 = 'length=["2","3","5"]', "budget=[6,14]"
# Of each pair: its config, how many questions and tokens, and its runs: a recipe, the questions,
# what it is cut to, temperatures.
RUNS = {
    "smollm2": ("smollm2", 24, 48, (
        ("rsd=exp1", "mt_bench_questions", ('length=["2","3"]',), "1"),
        ("rsd=exp2", "mt_bench_questions", (EXP2,), "1"),
        ("mcsd=acceptance", "mt_bench_questions", (f"cells=[{KS}]",), "0,1"),
        ("mcsd=ablation", "mt_bench_questions", (), "1"),
        ("dsbd=fronts", "summaries", (f"cells=[{BEAMS}]",), "1"),
        ("redrafter=decoding", "mt_bench_questions", (HEADS, TYPICAL), "0,0.7"),
        ("redrafter=temperatures", "mt_bench_questions", (HEADS, TYPICAL, "seed=0"), "0,0.5,0.9"),
        ("redrafter=beams", "mt_bench_questions",
         (HEADS, f"cells=[{WIDTHS}]", "generation.max_new_tokens=16,32,64"), "0"),
        ("redrafter=batches", "mt_bench_questions", (HEADS, ROWS, *BATCHED), "0"),
        ("beyond=verification", "mt_bench_questions", (f"cells=[{RULES}]",), "1"),
    )),
    "qwen_coder": ("qwen25_coder_q4", 12, 32, (
        ("rsd=exp1", "translations", (EXP1,), "0.3"),
        ("rsd=exp2", "translations", (EXP2,), "0.3"),
        ("rsd=exp2", "summaries", (EXP2,), "0.3"),
        ("rsd=exp1", "summaries", (EXP1,), "0.3"),
    )),
}  # fmt: skip
ABOUT = """\
# The papers' claims on two pairs

Made by `python scripts/bench/public_pair.py --claims` from the rows in `embedded` and `smollm2`.
`embedded` is the pair that ships, trained for these tasks: its draft agrees more often than the
papers' do. `smollm2` is SmolLM2-135M-Instruct (4-bit weights, dequantised) with its draft of 7.9
million parameters, batch size 1, MT-bench's first turns (24 of them), answers of 48 tokens. DSBD's
are the 24 shortest of Spec-Bench's texts to summarise, with ROUGE-2. ReDrafter's batches of 1 to 32
have 32 first turns, answers of 24 tokens and three rounds, whose rates differ by up to 1.4 times,
as the other core's work did; the last of their 18 jobs ran in a process of its own. Its ReDrafter
head is of 5.9 million parameters, 4,096 tokens, and learned for 207 seconds of an H200 beside five
others. Rates are of one thread on one of two cores; the other one worked, too. On a CPU a pass of
many tokens costs several of one: what a paper says of token rates on its GPUs is not to be expected
here.
"""


def main() -> int:
    """Runs what is missing, or writes the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("questions", nargs="?", type=Path)
    parser.add_argument("--only", help="a recipe, such as rsd=exp2")
    parser.add_argument("--pair", choices=tuple(RUNS), default="smollm2")
    parser.add_argument("--claims", action="store_true")
    options = parser.parse_args()
    if options.claims:
        path = ROOT / "outputs/claims.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(page(), encoding="utf-8")
        print(path)
        return 0
    if options.questions is None:
        parser.error("QUESTIONS.jsonl or --claims")
    pair, prompts, tokens, runs = RUNS[options.pair]
    status = 0  # each in a folder of its own: a table is of one session
    for recipe, asked, cut, temperatures in runs:
        if options.only in (None, recipe):
            name = recipe.replace("=", "-")
            folder = ROOT / "outputs/public" / (options.pair if options.pair != "smollm2" else "")
            kept = name if options.pair == "smollm2" else f"{name}-{asked}"
            folder = folder / kept
            words = [
                recipe, f"pair={pair}", "task=spec_bench", *questions(options.questions, asked),
                "task.sample=random", "task.later_turns=none", "engine.threads=1", "energy=none",
                f"prompts={prompts}", f"generation.max_new_tokens={tokens}", "seed=0", *cut,
                f"generation.temperature={temperatures}",
            ]  # fmt: skip
            command = [sys.executable, "-m", "spec_bench", "-m", *words, f"results={folder}"]
            status |= subprocess.run(command, cwd=ROOT, check=False).returncode != 0
            target = ROOT / "results" / options.pair / kept
            shutil.copytree(folder / name, target, dirs_exist_ok=True)
    return status


def questions(file: Path, name: str) -> list[str]:
    """Writes the questions that a run asks; returns what names them, and their scores.

    ``mt_bench_questions``: MT-bench's, by its own numbers. ``summaries``, ``translations``: the
    shortest 24 of that category.
    """
    path = ROOT / "outputs/public" / name / "question.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [(json.loads(line), line) for line in file.read_text("utf-8").splitlines()]
    if name == "mt_bench_questions":
        kept = [line for row, line in rows if 81 <= row["question_id"] <= 160]
    else:
        category = {"summaries": "summarization", "translations": "translation"}[name]
        kept = [line for row, line in rows if row["category"] == category]
        kept = sorted(kept, key=len)[:24]
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    scores = {"summaries": ["task.scores=[rouge2]"], "translations": ["task.scores=[bleu]"]}
    return [f"task.name={name}", f"task.source.path={path}", *scores.get(name, [])]


def page() -> str:
    """The claims of all papers on both pairs, and what would decide the open ones."""
    heads = ("paper", "pair", "claim", "on", "verdict", "prompts that may decide")
    parts, left = [ABOUT], [heads, ("---",) * len(heads)]
    for name in ("rsd", "mcsd", "redrafter", "dsbd"):
        found: dict[str, list[Check]] = {}
        for pair in PAIRS:
            root = ROOT / "results" / pair
            found[pair] = check_claims(name, read_rows(list_results_files(root)), root)
        every = [check for checks in found.values() for check in checks]
        with redirect_stdout(io.StringIO()) as told:
            print_checks(found[PAIRS[1]], summarise_claims(every, load_paper(name)))
        lines = "\n".join(line.rstrip() for line in told.getvalue().strip().splitlines())
        parts.append(f"## {name.upper()}\n\n```\n{lines}\n```\n")
        for each in every:
            if each.verdict.endswith((" alone", " noise", " decided")):
                said = re.search(r"(\d+) prompts (may|would not)", each.evidence)
                count = f"{'over ' * (said[2] == 'would not')}{said[1]}" if said else "unknown"
                left.append((name, each.pair, each.claim, each.where, each.verdict, count))
    table = "\n".join(f"| {' | '.join(line)} |" for line in left)
    return "\n".join([*parts, f"## Not decided\n\n{table}\n"])


if __name__ == "__main__":
    sys.exit(main())
