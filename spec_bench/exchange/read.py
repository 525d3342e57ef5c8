"""``spec-bench report answers``: turns answer files of other harnesses into rows and records of a
results folder.

Tables, pages, intervals, categories and ``compare`` treat these rows like this program's own. The
column ``harness`` tells them apart.

All file formats derive from FastChat's: a JSON line per question with ``question_id``, ``model_id``
and ``choices``; each list in ``choices[0]`` has an entry per turn. Spec-Bench (Xia et al.,
arXiv:2401.07851) adds ``category`` and ``accept_lengths``, the tokens per target call, of all turns
in one list; EAGLE and Medusa have ``idxs``, the index of each turn's last target call, from 0.
``wall_time`` includes the prefill. Files that ``spec-bench answers`` wrote also have
``prefill_time`` and ``decode_time``.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from spec_bench.metrics import CellRecords
from spec_bench.metrics.summary import summarise
from spec_bench.records import parquet
from spec_bench.records.parquet import UNKNOWN_TOKEN
from spec_bench.records.types import ENGINE, Generation, StepRecord
from spec_bench.settings.foreign import (
    LEAST_S,
    MOST_TOKENS,
    AnsweredChoice,
    AnsweredLine,
)
from spec_bench.settings.validation import read_settings
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.tasks.prompt_files import iter_json_lines
from spec_bench.vocabulary import columns

_FAILED_TURN = "ERROR"  # text that these harnesses write for a turn that raised
_REQUEST_NOTE = (
    "token_rate: of whole requests, prefill included, as the harness times it; "
    "speedup: one after the other, not timed in turn"
)
_OWN_NOTE = "speedup: as timed by this program, read from answer files"
_RATE_NOTE = "; acceptance_rate: only the number of target calls is known"
_DEPTH_NOTE = "; acceptance_rate: of trees as deep as the most tokens that a call accepted"
_SPEEDS = (
    "speed-up {:.2f} by sums of tokens and seconds, as in the table; {:.2f} as Spec-Bench's "
    "speed.py: mean of the questions' token rates over the baseline's"
)
_UNTIMED_COLUMNS = ("draft_s", "target_s")
_UNCOUNTED_COLUMNS = ("nodes_per_call", "host_overhead")


class AnswerFile(NamedTuple):
    """Answers of one file, in the file's order."""

    model: str  # ``model_id``; several are joined by commas
    # One per question, for all of its turns. Files have no depths of trees: every step gets the
    # largest number of tokens that a call accepted, or 0 if tokens per call are unknown.
    generations: list[Generation]
    failed_ids: list[str]  # ids of questions with a failed turn, left out
    has_split_times: bool  # whether prefill and decoding are timed separately
    # whether the tokens of every target call are known; else a question's are split evenly
    has_tokens_by_call: bool
    # ids of questions with several choices (samples); only the first choice is used
    sampled_ids: list[str]

    @property
    def mean_request_tokens_per_s(self) -> float:
        """Mean over questions of the whole request's tokens per second."""
        return fmean(len(answer.tokens) / (answer.latency_s or 0.0) for answer in self.generations)


def read_answer_file(path: Path, categories: Mapping[str, str] | None = None) -> AnswerFile:
    """Reads a file of answers; ``categories``, by question id, are used for lines without a
    category. Raises UsageError, which names the file, the line and the defect.
    """
    answers = dict[str, Generation]()
    evenly_split = set[str]()
    failed_ids = dict[str, None]()
    models = dict[str, None]()
    sampled_ids = list[str]()
    has_split_times = True
    tokens = 0
    for line in iter_json_lines(path, str(path.parent)):
        try:
            answered_line = read_settings(AnsweredLine, line)
            question = answered_line.question_id
            models[answered_line.model_id or ""] = None
            choice = answered_line.choices[0]
            has_split_times &= "decode_time" in choice
            if _FAILED_TURN in (choice.get("turns") or ()):
                failed_ids[question] = None
                answers.pop(question, None)
                continue
            if question in answers:
                raise UsageError(f"question {question} is there twice; keep one")
            category = answered_line.category or (categories or {}).get(question, "")
            counts = read_settings(AnsweredChoice, choice, "choices[0]")
            tokens += sum(counts.new_tokens)
            if tokens > MOST_TOKENS:
                raise UsageError(f"new_tokens up to here are {tokens}, at most {MOST_TOKENS}")
            answers[question] = _build_generation(question, category, counts)
            evenly_split |= {question} if counts.accept_lengths is None else set()
            failed_ids.pop(question, None)
            sampled_ids += [question] if len(answered_line.choices) > 1 else []
        except (TypeError, ValueError) as error:
            raise UsageError(f"{str(path)!r}, {line.place}: {error}") from error
    if not answers:
        raise UsageError(f"{str(path)!r} has no answers")
    generations = list(answers.values())
    all_known = evenly_split.isdisjoint(answers)
    depth = (
        max((step.accepted for generation in generations for step in generation.steps), default=0)
        * all_known
    )
    generations = [
        replace(generation, steps=tuple(replace(step, depth=depth) for step in generation.steps))
        for generation in generations
    ]
    return AnswerFile(
        ", ".join(models), generations, list(failed_ids), has_split_times, all_known, sampled_ids
    )


def read_categories(path: Path) -> dict[str, str]:
    """Reads each question's category from a ``question.jsonl``. Raises UsageError if a line lacks a
    field.
    """
    try:
        return {
            str(line["question_id"]): str(line["category"])
            for line in iter_json_lines(path, str(path.parent))
        }
    except (KeyError, TypeError) as error:
        raise UsageError(f"{str(path)!r}: a line without {error}") from error


def _build_generation(question: str, category: str, choice: AnsweredChoice) -> Generation:
    """Builds one question's record. Raises UsageError if its tokens or seconds are impossible."""
    turn_count = len(choice.new_tokens)
    token_count = sum(choice.new_tokens)
    wall_s = sum(choice.wall_time)
    prefill_s = sum(choice.prefill_time or ())
    decode_s = wall_s if choice.decode_time is None else sum(choice.decode_time)
    for name in ("turns", "wall_time", "prefill_time", "decode_time", "idxs"):
        entries = getattr(choice, name)
        if entries is not None and len(entries) != turn_count:
            raise UsageError(f"{name} is of {len(entries)} turns, new_tokens of {turn_count}")
    if min(choice.wall_time) < LEAST_S:
        raise UsageError(f"wall_time is {min(choice.wall_time)}, at least {LEAST_S}")
    # A served answer may be all in its first chunk, so that nothing remains to decode.
    min_s = LEAST_S * (token_count - turn_count if decode_s == 0 else max(token_count, 1))
    if not min_s <= decode_s <= 1.01 * wall_s - prefill_s:
        times = f"wall_time {wall_s}, prefill_time {prefill_s} and decode_time {decode_s}"
        raise UsageError(f"{times} cannot be of {token_count} new_tokens")
    calls = _get_or_split_tokens_by_call(choice, token_count)
    # The prefill may emit a turn's first token; a turn's last call may pass the limit.
    excess = sum(calls) - token_count
    if not -turn_count <= excess < turn_count * max(calls, default=1):
        raise UsageError(f"new_tokens are {token_count}, and accept_lengths add up to {sum(calls)}")
    tokens_left = token_count
    steps = list[StepRecord]()
    for call_tokens in calls:
        steps.append(StepRecord(0, 0, call_tokens - 1, min(call_tokens, tokens_left)))
        tokens_left -= steps[-1].delivered
    return Generation(
        prompt_id=question,
        tokens=(UNKNOWN_TOKEN,) * token_count,
        finish="length",
        steps=tuple(steps),
        prefill_s=prefill_s,
        decode_s=decode_s,
        draft_s=0.0,
        target_s=0.0,
        latency_s=wall_s,
        session="",
        category=category,
    )


def _get_or_split_tokens_by_call(choice: AnsweredChoice, token_count: int) -> tuple[int, ...]:
    """Returns the number of tokens of each target call, evenly split if only the number of calls is
    known. Raises UsageError if that is unknown, too, or impossible.
    """
    if choice.accept_lengths is not None:
        return choice.accept_lengths
    if choice.idxs is None:
        raise UsageError("neither accept_lengths nor idxs")
    call_count = sum(index + 1 for index in choice.idxs)
    if call_count < 1:
        raise UsageError(f"idxs is {list(choice.idxs)}")
    quotient, remainder = divmod(token_count, call_count)
    if quotient < 1:
        raise UsageError(f"{token_count} new_tokens of {call_count} target calls")
    return tuple(quotient + (call < remainder) for call in range(call_count))


def import_answer_files_and_print_speedups(options: Namespace) -> None:
    """Reads the command line's files and writes the experiment. Raises UsageError if a file is
    invalid, or if two would be the same row.
    """
    categories = read_categories(options.questions) if options.questions else None
    answer_files = {path.stem: read_answer_file(path, categories) for path in options.files}
    if len(answer_files) < len(options.files) or "ar" in answer_files:
        names = [path.stem for path in options.files]
        raise UsageError(f"files need names of their own, and none is 'ar', got {names}")
    if options.baseline:
        answer_files = {"ar": read_answer_file(options.baseline, categories), **answer_files}
    table = files.get_results_file(options.results, options.name)
    speeds = write_experiment_and_get_speedups(table, answer_files, options)
    print(f"rows: {table}")
    for decoder, speed in speeds.items() if options.baseline else ():
        mean_ratio = (
            answer_files[decoder].mean_request_tokens_per_s
            / answer_files["ar"].mean_request_tokens_per_s
        )
        models_note = _describe_other_model(answer_files[decoder], answer_files["ar"])
        print(decoder, _SPEEDS.format(speed, mean_ratio) + models_note, sep=": ")
    for decoder, file in answer_files.items():
        if file.failed_ids:
            print(f"{decoder}: left out as failed: {', '.join(file.failed_ids)}")
        if file.sampled_ids:
            print(
                f"{decoder}: only the first of several choices counts, as in Spec-Bench's "
                f"speed.py, of {', '.join(file.sampled_ids)}"
            )


def _describe_other_model(file: AnswerFile, baseline: AnswerFile) -> str:
    """Describes how the model ids of a file and the baseline's differ; "" if they are equal."""
    if file.model == baseline.model:
        return ""
    return (
        f"; speedup: of model_id {file.model} over {baseline.model}, which decides nothing unless "
        "both name one model"
    )


def write_experiment_and_get_speedups(
    table: Path,
    answer_files: Mapping[str, AnswerFile],
    options: Namespace,
) -> dict[str, Any]:
    """Writes ``results.csv`` and ``records.parquet`` from answer files by decoder; returns each
    decoder's speed-up.

    The baseline's file, if there is one, comes first and is called ``ar``. Only questions that all
    files answer are used. ``options`` has values that files lack: ``harness``, ``task``,
    ``temperature`` and ``pair`` ("": the first file's model). Raises UsageError if no question is
    in all files.
    """
    first_ids, *other_ids = (
        {a.prompt_id for a in file.generations} for file in answer_files.values()
    )
    common_ids = first_ids.intersection(*other_ids)
    if not common_ids:
        raise UsageError("no question was answered in all files")
    for decoder, file in answer_files.items():
        if left_out := [a.prompt_id for a in file.generations if a.prompt_id not in common_ids]:
            print(f"{decoder}: left out, as other files lack them: {', '.join(left_out)}")
    answers = {
        decoder: [answer for answer in file.generations if answer.prompt_id in common_ids]
        for decoder, file in answer_files.items()
    }
    pair = options.pair or next(iter(answer_files.values())).model
    rows = []
    tables = []
    for decoder, file in answer_files.items():
        records = CellRecords(answers[decoder], answers.get("ar"))
        row = _make_result_row(decoder, file, records, options) | {"pair": pair, "target": pair}
        if "ar" in answer_files:
            row["reason"] += _describe_other_model(file, answer_files["ar"])
        rows.append(row)
        tables.append(parquet.pack_generations(row["run_id"], answers[decoder], None))
    files.write_csv(table, rows, columns.order_column_names(name for row in rows for name in row))
    parquet.write_records(files.get_records_file(table), parquet.concat_records(tables))
    return {row["decoder"]: row["speedup"] for row in rows if row["decoder"] != "ar"}


def _make_result_row(
    decoder: str,
    file: AnswerFile,
    records: CellRecords,
    options: Namespace,
) -> dict[str, Any]:
    """Makes a decoder's row: its settings, and the numbers that its file determines."""
    answer_lines = [
        [answer.prompt_id, len(answer.tokens), answer.decode_s] for answer in records.generations
    ]
    reason = (
        f"pair: answers of {file.model}; {_OWN_NOTE if file.has_split_times else _REQUEST_NOTE}"
    )
    rate_reason = "" if decoder == "ar" else _DEPTH_NOTE if file.has_tokens_by_call else _RATE_NOTE
    unknown_columns: tuple[str, ...] = (*_UNTIMED_COLUMNS, *_UNCOUNTED_COLUMNS)
    if not file.has_split_times:
        unknown_columns += ("prefill_s",)
    if not file.has_tokens_by_call:
        unknown_columns += ("acceptance_rate",)
    row = {
        "pair": "",
        "target": "",
        "draft": "",
        "task": options.task,
        "decoder": decoder,
        "spec": "-",
        "temperature": options.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
        "batch_size": 1,
        "tree_attention": "true",
        "harness": options.harness,
        "lossless": "",
        "status": "complete",
        "run_id": files.hash_json(
            [options.harness, options.task, decoder, file.model, answer_lines]
        ),
        "baseline": "",
        "engine": ENGINE,  # the times are not of an older engine of this program
        "reason": reason + rate_reason,
    }
    summary = summarise(records)
    for name, number in summary.row.items():
        is_unknown = number is None or name.startswith(unknown_columns)
        row[name] = "" if is_unknown else number
    for text in summary.explain_missing_ends(records, row):
        row["reason"] += f"; intervals: {text}"
    return row
