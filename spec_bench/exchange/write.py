"""``spec-bench answers``: a run as answer files that Spec-Bench's own scripts read.

One file per cell and repeat, ``run_1/DECODER-TREE.jsonl`` and so on, with one line per question:
``choices[0]`` has ``turns``, ``decoding_steps``, ``new_tokens``, ``wall_time`` (prefill included)
and ``accept_lengths`` (tokens per target call, all turns in a row), as in Spec-Bench (Xia et al.,
arXiv:2401.07851); also ``prefill_time`` and ``decode_time``, which its scripts ignore and
``python -m spec_bench.report answers`` reads. Token ids, and so texts, are only in the runs.

With ``--texts`` also ``texts.csv``, a line per cell, repeat and prompt, which
``python -m spec_bench.report export NAME --texts FILE`` takes as a column.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from spec_bench.records import cell_folder
from spec_bench.records.types import Generation
from spec_bench.settings.arguments import Parser, output_folder
from spec_bench.system import files

_TURN = re.compile(r"(.+)/(\d+)")
TEXTS = "texts.csv"
Text = Callable[[Sequence[int]], str]


def main(arguments: Sequence[str]) -> int:
    """Writes the files; 2 and one line if the request cannot be right."""
    parser = Parser(
        prog="spec-bench answers",
        description=str(__doc__).replace("``", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", type=Path, metavar="FILE", help="a results.csv with its runs")
    parser.add_argument(
        "--output", type=output_folder, metavar="FOLDER", help="default: answers beside the table"
    )
    parser.add_argument("--texts", action="store_true", help="also write texts.csv")
    options = parser.parse_args(list(arguments))
    folder = options.output or options.table.parent / "answers"
    try:
        files.check_writable(folder)
        for path in write_answers(options.table, folder):
            print(path)
        if options.texts:
            print(write_texts(options.table, folder / TEXTS))
    except ValueError as error:
        print(f"spec_bench answers: {error}", file=sys.stderr)
        return 2
    return 0


def write_answers(table: Path, folder: Path) -> list[Path]:
    """One file per cell that has numbers, and repeat.

    Raises:
        ValueError: there is no such file, or the cells' runs are not here.
    """
    written: list[Path] = []
    rows = _complete(table)
    names = [_name(row) for row in rows]
    for row, name in zip(rows, names, strict=True):
        generations, text = _answers_of(table, row)
        unique = name if names.count(name) == 1 else f"{name}-{row['run_id']}"
        for repeat in sorted({each.repeat for each in generations}):
            of_repeat = [each for each in generations if each.repeat == repeat]
            path = folder / f"run_{repeat + 1}" / f"{unique}.jsonl"
            model = f"{row['pair']}-{name}"
            files.write_text(path, "".join(_lines(of_repeat, model, text)))
            written.append(path)
    return written


def write_texts(table: Path, path: Path) -> Path:
    """A line per cell that has numbers, repeat and prompt, with the answer's text.

    Raises:
        ValueError: as ``write_answers``.
    """
    lines = [
        {name: getattr(each, name) for name in ("repeat", "prompt_id")}
        | {"run_id": row["run_id"], "text": text(each.tokens)}
        for row in _complete(table)
        for generations, text in (_answers_of(table, row),)
        for each in generations
    ]
    files.write_csv(path, lines, files.TEXT_COLUMNS)
    return path


def _complete(table: Path) -> list[dict[str, str]]:
    """The rows of cells that have numbers."""
    if not table.is_file():
        raise ValueError(f"no results file {str(table)!r}")
    rows = [row for row in files.read_csv(table, ["run_id"]) if row["status"] == "complete"]
    if not rows:
        raise ValueError(f"no complete cell in {str(table)!r}")
    return rows


def _answers_of(table: Path, row: Mapping[str, str]) -> tuple[list[Generation], Text]:
    """A cell's generations, and what makes texts of their tokens."""
    run = files.run_folder(files.results_of(table), row["run_id"])
    generations = cell_folder.read_lines(run / files.GENERATIONS)
    if not generations:
        raise ValueError(
            f"no generations of {_name(row)} in {str(run)!r}: texts are kept there alone"
        )
    return generations, _text_of(run)


def _name(row: Mapping[str, str]) -> str:
    """A cell's name, fit for a file."""
    parts = (row["decoder"], row["spec"] if row["spec"] != "-" else "")
    return "-".join(re.sub(r"[^\w.-]+", "_", part) for part in parts if part)


def _text_of(run: Path) -> Text:
    """Token ids to text, by the tokenizer that the cell ran with.

    Raises:
        ValueError: it cannot be loaded.
    """
    from spec_bench.engine.loading import load_tokenizer
    from spec_bench.jobs.config.model_files import model_path

    pair = yaml.safe_load((run / files.CONFIG).read_text(encoding="utf-8"))["pair"]
    tokenizer: Any = load_tokenizer(model_path(str(pair.get("tokenizer") or pair["target"])))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True)).strip()


def _lines(done: Sequence[Generation], model: str, text: Text) -> Iterator[str]:
    """A line per question, its turns in order."""
    questions: dict[str, list[Generation]] = {}
    known = {each.prompt_id for each in done}
    for each in done:
        turn = _TURN.fullmatch(each.prompt_id)
        several = turn is not None and f"{turn[1]}/0" in known
        questions.setdefault(turn[1] if turn and several else each.prompt_id, []).append(each)
    for question, turns in questions.items():
        turns.sort(key=lambda each: (len(each.prompt_id), each.prompt_id))
        yield f"{json.dumps(_line(question, turns, model, text), ensure_ascii=False)}\n"


def _line(question: str, turns: Sequence[Generation], model: str, text: Text) -> dict[str, Any]:
    choice = {
        "index": 0,
        "turns": [text(each.tokens) for each in turns],
        "decoding_steps": [len(each.steps) for each in turns],
        "new_tokens": [len(each.tokens) for each in turns],
        "wall_time": [each.prefill_s + each.decode_s for each in turns],
        "accept_lengths": [step.accepted + 1 for each in turns for step in each.steps],
        "prefill_time": [each.prefill_s for each in turns],
        "decode_time": [each.decode_s for each in turns],
    }
    return {
        "question_id": int(question) if question.isdecimal() else question,
        "category": turns[0].category,
        "answer_id": files.digest([model, question]),
        "model_id": model,
        "choices": [choice],
        "tstamp": 0.0,  # the same run gives the same file
    }
