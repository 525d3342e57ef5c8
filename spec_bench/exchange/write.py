"""``spec-bench answers``: a run as FastChat's files of answers and questions.

One file per cell and repeat, ``run_1/DECODER-TREE.jsonl`` and so on, with one line per question as
FastChat has it (``fastchat/llm_judge``): its judge reads ``turns``. Besides, ``choices[0]`` has
what Spec-Bench's scripts read (Xia et al., arXiv:2401.07851): ``decoding_steps``, ``new_tokens``,
``wall_time`` (prefill included) and ``accept_lengths`` (tokens per target call, all turns in a
row); and ``prefill_time`` and ``decode_time``, which ``spec-bench report answers`` reads.
Of a task that is ``judged`` also ``TASK/question.jsonl``, its questions with the turns that were
asked. Token ids, and so texts, are only in the runs.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from spec_bench.records import cell_folder
from spec_bench.records.ends import decode_answer
from spec_bench.records.types import Generation
from spec_bench.settings.arguments import Parser, output_folder
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.tasks import build_task

_TURN = re.compile(r"(.+)/(\d+)")
Text = Callable[[Sequence[int]], str]
Row = Mapping[str, str]


def main(arguments: Sequence[str]) -> int:
    """Writes the files; 2 and one line if the request cannot be right."""
    parser = Parser(prog="spec-bench answers")
    parser.add_argument("table", type=Path, metavar="FILE", help="a results.csv with its runs")
    parser.add_argument("--out", type=output_folder, help="default: answers beside the table")
    options = parser.parse_args(list(arguments))
    table = options.table
    try:
        folder = options.out or files.join_path_inside(table.parent, "answers")
        files.check_writable(folder)
        if not table.is_file():
            raise files.make_absence(f"no results file {str(table)!r}", files.results_folder(table))
        rows = [row for row in files.read_csv(table, ["run_id"]) if row["status"] == "complete"]
        if not rows:
            raise UsageError(f"no complete cell in {str(table)!r}")
        runs = [files.run_folder(files.results_folder(table), row["run_id"]) for row in rows]
        written = write_answers(rows, runs, folder)
        for path in (*written, *write_questions(rows, runs, folder)):
            print(path)
    except UsageError as error:
        print(f"spec-bench answers: {error}", file=sys.stderr)
        return 2
    return 0


def write_answers(rows: Sequence[Row], runs: Sequence[Path], folder: Path) -> list[Path]:
    """Writes one file per cell and repeat, of cells that have numbers and their runs' folders.
    Raises ValueError: the runs are not here.
    """
    written: list[Path] = []
    cells = [[row["decoder"], row["spec"]] for row in rows]
    names = [
        "-".join(re.sub(r"[^\w.-]+", "_", part) for part in cell if part != "-") for cell in cells
    ]
    for row, run, name in zip(rows, runs, names, strict=True):
        done = cell_folder.read_lines(run / files.GENERATIONS)
        if not done:
            where = f"{str(run)!r}: texts are kept there alone"
            raise UsageError(f"no generations of {name} in {where}")
        text = _decode_text(run)
        unique = name if names.count(name) == 1 else f"{name}-{row['run_id']}"
        for repeat in sorted({each.repeat for each in done}):
            of_repeat = [each for each in done if each.repeat == repeat]
            lines = _lines(of_repeat, f"{row['pair']}-{name}", text)
            written.append(files.join_path_inside(folder, f"run_{repeat + 1}/{unique}.jsonl"))
            files.write_text(written[-1], "".join(map(_json_line, lines)))
    return written


def write_questions(rows: Sequence[Row], runs: Sequence[Path], folder: Path) -> list[Path]:
    """Writes FastChat's ``question.jsonl`` of each task that is ``judged``. Raises ValueError: the
    task's rows are gone, or are others now.
    """
    tasks: dict[str, Mapping[str, Any]] = {}
    asked: dict[str, set[str]] = {}
    for row, run in zip(rows, runs, strict=True):
        task = _config(run).get("task", {})
        if task.get("judged"):
            tasks[row["task"]] = task
            done = cell_folder.read_lines(run / files.GENERATIONS)
            asked.setdefault(row["task"], set()).update(each.prompt_id for each in done)
    written = []
    for name, task in tasks.items():
        lines = []
        for each in build_task(task).examples():
            if turns := len(asked[name].intersection(each.prompt_ids)):
                golds = [gold[0] for gold in takewhile(bool, each.references[:turns])]
                line: dict[str, Any] = {"question_id": _number(each.id), "category": each.category}
                line["turns"] = list(each.turns[:turns])
                lines.append({**line, "reference": golds} if golds else line)
        if sum(len(line["turns"]) for line in lines) < len(asked[name]):
            raise UsageError(f"task {name} has other questions now than the rows answer")
        written.append(files.join_path_inside(folder, f"{name}/question.jsonl"))
        files.write_text(written[-1], "".join(map(_json_line, lines)))
    return written


def _config(run: Path) -> dict[str, Any]:
    if not (settings := cell_folder.read_cell(run).get("settings")):
        raise UsageError(f"{str(run / files.CELL)!r} has no settings")
    return dict(settings)


def _decode_text(run: Path) -> Text:
    """Returns what makes texts of token ids. Raises ValueError: no tokenizer can be loaded."""
    from spec_bench.engine.loading import load_tokenizer
    from spec_bench.jobs.config.model_files import model_path

    pair = _config(run)["pair"]
    tokenizer: Any = load_tokenizer(model_path(str(pair.get("tokenizer") or pair["target"])))
    return lambda ids: decode_answer(tokenizer, list(ids)).strip()


def _lines(done: Sequence[Generation], model: str, text: Text) -> Iterator[dict[str, Any]]:
    """Yields a line per question, its turns in order."""
    questions: dict[str, list[Generation]] = {}
    known = {each.prompt_id for each in done}
    for each in done:
        turn = _TURN.fullmatch(each.prompt_id)
        several = turn is not None and f"{turn[1]}/0" in known
        questions.setdefault(turn[1] if turn and several else each.prompt_id, []).append(each)
    for question, turns in questions.items():
        turns.sort(key=lambda each: (len(each.prompt_id), each.prompt_id))
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
        yield {
            "question_id": _number(question),
            "category": turns[0].category,
            "answer_id": files.digest([model, question]),
            "model_id": model,
            "choices": [choice],
            "tstamp": 0.0,  # the same run gives the same file
        }


def _number(question: str) -> int | str:
    return int(question) if question.isdecimal() else question


def _json_line(values: Mapping[str, Any]) -> str:
    return f"{json.dumps(values, ensure_ascii=False)}\n"
