"""``spec-bench answers``: writes a run as FastChat's files of answers and questions.

Writes one file per cell and repeat (``run_1/DECODER-TREE.jsonl``), with one line per question in
FastChat's format (``fastchat/llm_judge``); its judge reads ``turns``. ``choices[0]`` also has the
fields that Spec-Bench's scripts read (Xia et al., arXiv:2401.07851): ``decoding_steps``,
``new_tokens``, ``wall_time`` (prefill included) and ``accept_lengths`` (tokens per target call, of
all turns in one list); and ``prefill_time`` and ``decode_time``, which ``spec-bench report
answers`` reads. A ``judged`` task also gets ``TASK/question.jsonl``, its questions with the turns
of the run. Texts are decoded from the token ids in the runs' folders.
"""

import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from spec_bench.records import cell_folder
from spec_bench.records.ends import decode_without_end_token
from spec_bench.records.types import Generation
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.tasks import build_task

_TURN = re.compile(r"(.+)/(\d+)")
TokenDecoder = Callable[[Sequence[int]], str]
Row = Mapping[str, str]


def export_answer_files(options: Namespace) -> None:
    """Writes answers and judged questions in FastChat's format, and prints the paths. Raises
    UsageError if the table has no complete cell, or if the answers cannot be written.
    """
    table = options.table
    folder = options.out or files.join_path_inside(table.parent, "answers")
    files.require_writable(folder)
    if not table.is_file():
        raise files.make_error_with_stop_hint(
            f"no results file {str(table)!r}", files.get_results_folder(table)
        )
    rows = [row for row in files.read_csv(table, ["run_id"]) if row["status"] == "complete"]
    if not rows:
        raise UsageError(f"no complete cell in {str(table)!r}")
    runs = [files.get_run_folder(files.get_results_folder(table), row["run_id"]) for row in rows]
    paths = write_answers_per_repeat(rows, runs, folder)
    for path in (*paths, *write_judged_questions(rows, runs, folder)):
        print(path)


def write_answers_per_repeat(
    rows: Sequence[Row], run_folders: Sequence[Path], folder: Path
) -> list[Path]:
    """Writes a file of answers per cell and repeat, for complete rows and their runs' folders;
    returns the paths. Raises UsageError if a run has no generations, if they are of other models
    than the row, or if the tokenizer has changed since.
    """
    paths: list[Path] = []
    names = [
        "-".join(
            re.sub(r"[^\w.-]+", "_", part) for part in (row["decoder"], row["spec"]) if part != "-"
        )
        for row in rows
    ]
    for row, run_folder in zip(rows, run_folders, strict=True):
        cell_folder.require_row_of_these_models(run_folder, row)
        _require_recorded_tokenizer(run_folder)
    for row, run_folder, name in zip(rows, run_folders, names, strict=True):
        generations = cell_folder.read_generations_skipping_damaged(run_folder / files.GENERATIONS)
        if not generations:
            place = f"{str(run_folder)!r}: texts are kept there alone"
            raise UsageError(f"no generations of {name} in {place}")
        decode = _load_text_decoder(run_folder)
        file_name = name if names.count(name) == 1 else f"{name}-{row['run_id']}"
        for repeat in sorted({generation.repeat for generation in generations}):
            of_repeat = [generation for generation in generations if generation.repeat == repeat]
            lines = _iter_answer_lines(of_repeat, f"{row['pair']}-{name}", decode)
            paths.append(files.join_path_inside(folder, f"run_{repeat + 1}/{file_name}.jsonl"))
            files.write_text(paths[-1], "".join(map(_format_json_line, lines)))
    return paths


def write_judged_questions(
    rows: Sequence[Row], run_folders: Sequence[Path], folder: Path
) -> list[Path]:
    """Writes FastChat's ``question.jsonl`` of each task that is ``judged``; returns the paths.
    Raises UsageError if a task's data has changed.
    """
    tasks: dict[str, Mapping[str, Any]] = {}
    asked_ids: dict[str, set[str]] = {}
    for row, run_folder in zip(rows, run_folders, strict=True):
        task = _read_settings(run_folder).get("task", {})
        if task.get("judged"):
            tasks[row["task"]] = task
            generations = cell_folder.read_generations_skipping_damaged(
                run_folder / files.GENERATIONS
            )
            asked_ids.setdefault(row["task"], set()).update(
                answer.prompt_id for answer in generations
            )
    paths = []
    for name, task in tasks.items():
        lines = []
        for example in build_task(task).read_examples():
            if turn_count := len(asked_ids[name].intersection(example.prompt_ids)):
                line: dict[str, Any] = {
                    "question_id": _parse_question_id(example.id),
                    "category": example.category,
                    "turns": list(example.turns[:turn_count]),
                }
                golds = [gold[0] for gold in takewhile(bool, example.references[:turn_count])]
                lines.append({**line, "reference": golds} if golds else line)
        if sum(len(line["turns"]) for line in lines) < len(asked_ids[name]):
            raise UsageError(f"task {name} has other questions now than the rows answer")
        paths.append(files.join_path_inside(folder, f"{name}/question.jsonl"))
        files.write_text(paths[-1], "".join(map(_format_json_line, lines)))
    return paths


def _read_settings(run_folder: Path) -> dict[str, Any]:
    if not (settings := cell_folder.read_cell_json(run_folder).get("settings")):
        raise UsageError(f"{str(run_folder / files.CELL)!r} has no settings")
    return dict(settings)


def _require_recorded_tokenizer(run_folder: Path) -> None:
    """Raises UsageError, which names the file, if a file of the run's tokenizer has changed."""
    from spec_bench.jobs.config.model_files import find_changed_tokenizer_file

    if digests := _read_tokenizer_digests(run_folder):
        source = _get_tokenizer_source(run_folder)
        if changed_file := find_changed_tokenizer_file(source, digests):
            raise UsageError(
                f"{str(changed_file)!r} has changed since {str(run_folder)!r} was decoded: its "
                "token ids are other texts now; put the old file back, or run the experiment again"
            )


def _read_tokenizer_digests(run_folder: Path) -> Mapping[str, str]:
    """Reads the digests of the files from which the tokenizer was loaded; empty if unknown."""
    models = cell_folder.read_models_json(run_folder).get("models") or {}
    digests: Mapping[str, str] = models.get("tokenizer") or models.get("target") or {}
    return digests


def _get_tokenizer_source(run_folder: Path) -> str:
    pair = _read_settings(run_folder)["pair"]
    tokenizer = pair.get("tokenizer")
    return str(tokenizer["source"] if tokenizer else pair["target"])


def _load_text_decoder(run_folder: Path) -> TokenDecoder:
    """Loads the run's tokenizer and returns a function that decodes token ids into text."""
    from spec_bench.engine.loading import load_tokenizer
    from spec_bench.jobs.config.model_files import resolve_or_convert_model

    commit = _read_tokenizer_digests(run_folder).get("commit") or None
    path = resolve_or_convert_model(_get_tokenizer_source(run_folder))
    tokenizer: Any = load_tokenizer(path, commit)
    return lambda ids: decode_without_end_token(tokenizer, list(ids)).strip()


def _iter_answer_lines(
    generations: Sequence[Generation],
    model: str,
    decode: TokenDecoder,
) -> Iterator[dict[str, Any]]:
    """Yields one line in FastChat's format per question, with its turns in order."""
    questions: dict[str, list[Generation]] = {}
    prompt_ids = {generation.prompt_id for generation in generations}
    for generation in generations:
        turn = _TURN.fullmatch(generation.prompt_id)
        has_turns = turn is not None and f"{turn[1]}/0" in prompt_ids
        questions.setdefault(turn[1] if turn and has_turns else generation.prompt_id, []).append(
            generation
        )
    for question, turns in questions.items():
        turns.sort(key=lambda generation: (len(generation.prompt_id), generation.prompt_id))
        choice = {
            "index": 0,
            "turns": [decode(generation.tokens) for generation in turns],
            "decoding_steps": [len(generation.steps) for generation in turns],
            "new_tokens": [len(generation.tokens) for generation in turns],
            "wall_time": [generation.prefill_s + generation.decode_s for generation in turns],
            "accept_lengths": [
                step.accepted + 1 for generation in turns for step in generation.steps
            ],
            "prefill_time": [generation.prefill_s for generation in turns],
            "decode_time": [generation.decode_s for generation in turns],
        }
        yield {
            "question_id": _parse_question_id(question),
            "category": turns[0].category,
            "answer_id": files.hash_json([model, question]),
            "model_id": model,
            "choices": [choice],
            "tstamp": 0.0,  # the same run gives the same file
        }


def _parse_question_id(question: str) -> int | str:
    return int(question) if question.isdecimal() else question


def _format_json_line(values: Mapping[str, Any]) -> str:
    return f"{json.dumps(values, ensure_ascii=False)}\n"
