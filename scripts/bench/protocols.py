"""MCSD and DSBD by their authors' protocol and by ours, on the same texts, side by side.

    make smollm2 && make qwen_coder
    python scripts/bench/protocols.py WMT.json QUESTIONS.jsonl [--pair smollm2]   # an hour; resumes

WMT.json is ``dataset/wmt_ende.json`` of github.com/NJUNLP/MCSD; QUESTIONS.jsonl is Spec-Bench's
``question.jsonl``, of which 80 questions bring a text and short answers (``rag``), as SQuAD's do.
Writes ``results/benchmarks/protocols.md`` from the rows of all pairs that are measured so far.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.report.claims import check_claims
from spec_bench.report.data.rows import read_rows
from spec_bench.system.files import list_results_files

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "outputs/protocols"
PAGE = ROOT / "results/benchmarks/protocols.md"
PAIRS = {"smollm2": "smollm2", "qwen_coder": "qwen25_coder_q4"}
CELLS = {
    "mcsd": "cells=[mcsd_wor:1,mcsd_wor:4,mcsd:4]",
    "dsbd": "cells=[sd:4,dsbd_one_cache:2x3@0.9,dsbd:3x3@0.9]",
}
MEASURES = ("acceptance_rate", "block_efficiency", "speedup")
SHOTS = (("translations", "bleu", (0, 1, 5)), ("summaries", "rouge2", (0, 1)))
ABOUT = """\
# Two protocols on the same texts

Made by `python scripts/bench/protocols.py`. `authors` is what a paper's own public code does,
`clean` is ours ([protocols](../../experiments/README.md#as-a-papers-authors-asked)). MCSD: the
first sentences of its authors' list for English to German. DSBD: Spec-Bench's questions with short
answers, each with the first of its passages that has an answer, in SQuAD's form, since no package
ships SQuAD. One thread of two, batch size 1, other work on the other core: a rate is a ratio to
plain decoding that ran in turns with it. Intervals are of 95% over prompts.
"""


def main() -> int:
    """Measures what is missing and writes the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("wmt", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--pair", choices=tuple(PAIRS), action="append")
    parser.add_argument("--shots", action="store_true", help="the scores of worked examples, too")
    parser.add_argument("--prompts", type=int, default=8)
    options = parser.parse_args()
    texts = write_texts(options.wmt, options.questions)
    status = 0
    for pair in options.pair or PAIRS:
        for paper, words in list_runs(texts):
            status |= decode(pair, paper, [*words, f"prompts={options.prompts}"])
    if options.shots:
        for task, score, shots in SHOTS:
            for count in shots:
                words = [
                    f"--data={texts[task]}", f"task.name={task}", f"task.shots={count}",
                    'task.stop=["\\n"]', f"task.scores=[{score}]", "cells=[ar]", "prompts=12",
                    "generation.temperature=0", "generation.max_new_tokens=64",
                    f"name={task}-{count}",
                ]  # fmt: skip
                status |= decode("qwen_coder", "shots", words)
    PAGE.write_text(write_page(), encoding="utf-8")
    return status


def list_runs(texts: dict[str, Path]) -> list[tuple[str, list[str]]]:
    """Returns (paper, settings) of each run of a pair."""
    runs = []
    for protocol in ("authors", "clean"):
        task = "wmt_mcsd" if protocol == "authors" else "wmt14_ende"
        for temperature in (0, 1):
            runs.append(("mcsd", [
                "mcsd=acceptance", f"protocol={protocol}", f"task={task}",
                f"task.source.path={texts[task]}", "task.scores=[]",
                f"generation.temperature={temperature}", "generation.max_new_tokens=64",
            ]))  # fmt: skip
        runs.append(("dsbd", [
            "dsbd=one_cache", f"protocol={protocol}", "task=squad", "gate=0",
            f"task.source.path={texts['rag']}", "generation.temperature=1",
            *(["generation.max_new_tokens=100"] if protocol == "authors" else []),
        ]))  # fmt: skip
    return runs


def decode(pair: str, paper: str, words: list[str]) -> int:
    """Runs one job into the pair's and the paper's folder; returns its status."""
    command = [
        sys.executable, "-m", "spec_bench", "run", *words, f"pair={PAIRS[pair]}",
        "engine.threads=1", "energy=none", f"results={OUT / pair / paper}",
        *([CELLS[paper]] if paper in CELLS else []),
    ]  # fmt: skip
    return int(subprocess.run(command, cwd=ROOT, check=False).returncode != 0)


def write_texts(wmt: Path, questions: Path) -> dict[str, Path]:
    """Writes the texts that tasks read, in their data sets' schemas; returns their files."""
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in questions.read_text("utf-8").splitlines()]
    prompts = "\0".join(json.loads(wmt.read_text("utf-8"))[:24])
    sentences = re.findall(r"Input: ([^\0]*?)\nOutput", prompts)
    rag = []
    for row in rows:
        if row["category"] == "rag":
            *passages, question = row["turns"][0].strip().split("\n")
            texts = row["reference"][0]
            found = [text for text in passages if any(answer in text for answer in texts)]
            if found:
                rag.append({
                    "id": row["question_id"], "title": "", "context": found[0],
                    "question": question,
                    "answers": {"text": texts, "answer_start": [0] * len(texts)},
                })  # fmt: skip
    plain = {"translations": "translation", "summaries": "summarization"}
    rows_by_name = {
        "wmt14_ende": [{"translation": {"en": text, "de": ""}} for text in sentences],
        "rag": sorted(rag, key=lambda row: len(row["context"])),
        **{
            name: [
                {"prompt": row["turns"][0], "reference": row["reference"][0]}
                for row in sorted(rows, key=lambda row: len(row["turns"][0]))
                if row["category"] == category
            ]
            for name, category in plain.items()
        },
    }
    files = {name: OUT / f"{name}.jsonl" for name in rows_by_name}
    for name, lines in rows_by_name.items():
        files[name].write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return {**files, "wmt_mcsd": wmt.resolve()}


def write_page() -> str:
    """The rows of all pairs, the verdicts of both papers, the scores by worked examples."""
    parts = [ABOUT]
    for paper in CELLS:
        tables = {
            pair: read_rows(list_results_files(OUT / pair / paper))
            for pair in PAIRS
            if (OUT / pair / paper).is_dir()
        }
        parts.append(f"## {paper.upper()}\n")
        parts.append(format_rows(pd.concat(tables.values())))
        parts.append("Verdicts of the paper's claims and of our checks, by protocol:\n")
        parts.append(compare_verdicts(paper, tables))
    if (OUT / "qwen_coder/shots").is_dir():
        rows = read_rows(list_results_files(OUT / "qwen_coder/shots"))
        parts.append("## Worked examples before each question, plain decoding, qwen_coder\n")
        columns = [name for name in ("bleu", "rouge2") if name in rows]
        lines = ["| texts | examples | prompt tokens | score |", "| --- | ---: | ---: | --- |"]
        for file, row in zip(rows["file"], rows.to_dict("records"), strict=True):
            score = next(name for name in columns if pd.notna(row[name]))
            shots = Path(str(file)).parent.name.rpartition("-")[2]
            name = f"{score} {format_interval(row, score)}"
            lines.append(f"| {row['task']} | {shots} | {row['prompt_length']:.0f} | {name} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def format_rows(rows: pd.DataFrame) -> str:
    """One line for each pair, temperature and decoder, both protocols side by side."""
    heads = ["pair", "temperature", "decoder", "protocol", "prompt tokens", "answer tokens",
             "acceptance rate", "tau", "speed-up"]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    rows = rows.assign(protocol=rows["protocol"].fillna("clean"))
    order = ["pair", "temperature", "decoder", "spec", "protocol"]
    for row in rows.sort_values(order).to_dict("records"):
        length = row["delivered_tokens"] / row["prompts"] / (row["repeats"] or 1)
        entries = [
            row["pair"], f"{row['temperature']:g}", f"{row['decoder']} {row['spec']}",
            row["protocol"], f"{row['prompt_length']:.0f}", f"{length:.0f}",
            *(format_interval(row, name) for name in MEASURES),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(entries)} |")
    return "\n".join(lines) + "\n"


def format_interval(row: dict[str, float], column: str) -> str:
    """``1.32 [1.20, 1.41]``; without the ends where there are none."""
    if pd.isna(row[column]):
        return ""
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    ends = "" if low is None or pd.isna(low) else f" [{low:.2f}, {high:.2f}]"
    return f"{row[column]:.2f}{ends}"


def compare_verdicts(paper: str, tables: dict[str, pd.DataFrame]) -> str:
    """A line for each claim and pair: how many verdicts of each kind by each protocol."""
    lines = ["| pair | claim | authors | clean |", "| --- | --- | --- | --- |"]
    for pair, rows in tables.items():
        found: dict[str, dict[str, Counter[str]]] = {}
        for protocol in ("authors", "clean"):
            kept = rows[rows["protocol"].fillna("clean") == protocol]
            for check in check_claims(paper, kept, OUT / pair / paper):
                by_protocol = found.setdefault(check.claim, {})
                by_protocol.setdefault(protocol, Counter())[check.verdict] += 1
        for claim, verdicts in found.items():
            told = [
                ", ".join(f"{n} {verdict}" for verdict, n in verdicts.get(protocol, {}).items())
                for protocol in ("authors", "clean")
            ]
            mark = " (turns)" if all(told) and told[0] != told[1] else ""
            lines.append(f"| {pair} | {claim}{mark} | {told[0]} | {told[1]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
