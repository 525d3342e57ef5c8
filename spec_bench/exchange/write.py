"""``spec-bench answers``: a run as FastChat's files of answers and questions.

One file per cell and repeat, ``run_1/DECODER-TREE.jsonl`` and so on, with one line per question as
FastChat has it (``fastchat/llm_judge``): its judge reads ``turns``. Besides, ``choices[0]`` has
what Spec-Bench's scripts read (Xia et al., arXiv:2401.07851): ``decoding_steps``, ``new_tokens``,
``wall_time`` (prefill included) and ``accept_lengths`` (tokens per target call, all turns in a
row); and ``prefill_time`` and ``decode_time``, which ``python -m spec_bench.report answers`` reads.
Of a task that is ``judged`` also ``TASK/question.jsonl``, its questions with the turns that were
asked. Token ids, and so texts, are only in the runs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from spec_bench.records import cell_folder
from spec_bench.records.types import Generation
from spec_bench.settings.arguments import Parser, output_folder
from spec_bench.system import files
from spec_bench.tasks import Example, build_task

_TURN = re.compile(r"(.+)/(\d+)")
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
    options = parser.parse_args(list(arguments))
    folder = options.output or options.table.parent / "answers"
    try:
        files.check_writable(folder)
        for path in (
            *write_answers(options.table, folder),
            *write_questions(options.table, folder),
        ):
            print(path)
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


def write_questions(table: Path, folder: Path) -> list[Path]:
    """FastChat's ``question.jsonl`` of each task that is ``judged``.

    Raises:
        ValueError: as ``write_answers``; or the task's rows are gone, or are others now.
    """
    tasks: dict[str, Mapping[str, Any]] = {}
    asked: dict[str, set[str]] = {}
    for row in _complete(table):
        run = _run(table, row)
        task = _config(run).get("task", {})
        if task.get("judged"):
            tasks[row["task"]] = task
            done = cell_folder.read_lines(run / files.GENERATIONS)
            asked.setdefault(row["task"], set()).update(each.prompt_id for each in done)
    written = []
    for name, task in tasks.items():
        lines = [
            _question(each, turns)
            for each in build_task(task).examples()
            if (turns := len(asked[name].intersection(each.prompt_ids)))
        ]
        if sum(len(line["turns"]) for line in lines) < len(asked[name]):
            raise ValueError(f"task {name} has other questions now than {str(table)!r} answers")
        written.append(folder / name / "question.jsonl")
        files.write_text(written[-1], "".join(map(_json_line, lines)))
    return written


def _question(example: Example, turns: int) -> dict[str, Any]:
    golds = [each[0] for each in takewhile(bool, example.references[:turns])]
    return {
        "question_id": _number(example.id),
        "category": example.category,
        "turns": list(example.turns[:turns]),
        **({"reference": golds} if golds else {}),
    }


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
    run = _run(table, row)
    generations = cell_folder.read_lines(run / files.GENERATIONS)
    if not generations:
        raise ValueError(
            f"no generations of {_name(row)} in {str(run)!r}: texts are kept there alone"
        )
    return generations, _text_of(run)


def _run(table: Path, row: Mapping[str, str]) -> Path:
    return files.run_folder(files.results_of(table), row["run_id"])


def _config(run: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((run / files.CONFIG).read_text(encoding="utf-8")))


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

    pair = _config(run)["pair"]
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
        yield _json_line(_line(question, turns, model, text))


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
        "question_id": _number(question),
        "category": turns[0].category,
        "answer_id": files.digest([model, question]),
        "model_id": model,
        "choices": [choice],
        "tstamp": 0.0,  # the same run gives the same file
    }


def _number(question: str) -> int | str:
    """Question ids are whole numbers where they can be."""
    return int(question) if question.isdecimal() else question


def _json_line(values: Mapping[str, Any]) -> str:
    return f"{json.dumps(values, ensure_ascii=False)}\n"
