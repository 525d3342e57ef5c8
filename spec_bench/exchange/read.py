"""``spec-bench report answers``: answer files of other harnesses as rows and records of a
results folder.

Tables, pages, intervals, categories and ``compare`` work on them as on ours. Their column
``harness`` keeps them apart from rows that this program measured.

The files all descend from FastChat's: a JSON line per question with ``question_id``, ``model_id``
and ``choices``; of ``choices[0]`` each list has an entry per turn. Spec-Bench (Xia et al.,
arXiv:2401.07851) adds ``category`` and ``accept_lengths``, tokens per target call of all turns in a
row; EAGLE and Medusa have ``idxs``, the index of each turn's last target call, from 0.
``wall_time`` holds the prefill. Files that ``spec-bench answers`` wrote also say
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
from spec_bench.settings.validation import check
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.tasks.prompt_files import iter_json_lines
from spec_bench.vocabulary import columns

_ERROR = "ERROR"  # what these harnesses write for a turn that raised
_WHOLE = (
    "token_rate: of whole requests, prefill included, as the harness times it; "
    "speedup: one after the other, not timed in turn"
)
_IN_TURN = "speedup: as timed by this program, read from answer files"
_UNKNOWN = "; acceptance_rate: only the number of target calls is known"
_DEPTH = "; acceptance_rate: of trees as deep as the most tokens that a call accepted"
_SPEEDS = (
    "speed-up {:.2f} by sums of tokens and seconds, as in the table; {:.2f} as Spec-Bench's "
    "speed.py: mean of the questions' token rates over the baseline's"
)
_UNTIMED = ("draft_s", "target_s")
_UNCOUNTED = ("nodes_per_call", "host_overhead")


class AnswerFile(NamedTuple):
    """A file's answers, in its order."""

    model: str  # as the file names it
    # Of a question one, whatever its turns. The depth of a call's tree is not in the file; the most
    # tokens that any call accepted stand in for it, none where each call's tokens are not known.
    answers: list[Generation]
    failed: list[str]  # ids of questions with a turn that raised, left out
    split: bool  # whether prefill and decoding are kept apart
    each_known: bool  # whether the tokens of every target call are known; else even

    @property
    def mean_rate(self) -> float:
        """The mean over questions of tokens per second of the whole request."""
        return fmean(len(each.tokens) / (each.latency_s or 0.0) for each in self.answers)


def read_answers(path: Path, categories: Mapping[str, str] | None = None) -> AnswerFile:
    """Reads a file of JSON lines; ``categories``, by question id, are for lines that have none.
    Raises ValueError: it is no such file; the message names it, the line and why.
    """
    answers = dict[str, Generation]()
    even = set[str]()
    failed = dict[str, None]()
    models = dict[str, None]()
    split = True
    tokens = 0
    for line in iter_json_lines(path, str(path.parent)):
        try:
            answered = check(AnsweredLine, line)
            question = answered.question_id
            models[answered.model_id or ""] = None
            choice = answered.choices[0]
            split &= "decode_time" in choice
            if _ERROR in (choice.get("turns") or ()):
                failed[question] = None
                answers.pop(question, None)
                continue
            if question in answers:
                raise UsageError(f"question {question} is there twice; keep one")
            category = answered.category or (categories or {}).get(question, "")
            counts = check(AnsweredChoice, choice, "choices[0]")
            tokens += sum(counts.new_tokens)
            if tokens > MOST_TOKENS:
                raise UsageError(f"new_tokens up to here are {tokens}, at most {MOST_TOKENS}")
            answers[question] = _answer(question, category, counts)
            even |= {question} if counts.accept_lengths is None else set()
            failed.pop(question, None)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{str(path)!r}, {line.place}: {error}") from error
    if not answers:
        raise UsageError(f"{str(path)!r} has no answers")
    found = list(answers.values())
    known = even.isdisjoint(answers)
    depth = max((step.accepted for each in found for step in each.steps), default=0) * known
    found = [
        replace(each, steps=tuple(replace(step, depth=depth) for step in each.steps))
        for each in found
    ]
    return AnswerFile(", ".join(models), found, list(failed), split, known)


def read_categories(path: Path) -> dict[str, str]:
    """Question id -> category of a ``question.jsonl``. Raises ValueError: it is no such file."""
    try:
        return {
            str(line["question_id"]): str(line["category"])
            for line in iter_json_lines(path, str(path.parent))
        }
    except (KeyError, TypeError) as error:
        raise UsageError(f"{str(path)!r}: a line without {error}") from error


def _answer(question: str, category: str, choice: AnsweredChoice) -> Generation:
    """Returns one question's. Raises ValueError: tokens or seconds cannot be right."""
    turns = len(choice.new_tokens)
    tokens = sum(choice.new_tokens)
    wall = sum(choice.wall_time)
    prefill = sum(choice.prefill_time)
    decode = wall if choice.decode_time is None else sum(choice.decode_time)
    if len(choice.wall_time) != turns:
        raise UsageError(f"wall_time is of {len(choice.wall_time)} turns, new_tokens of {turns}")
    if min(choice.wall_time) < LEAST_S:
        raise UsageError(f"wall_time is {min(choice.wall_time)}, at least {LEAST_S}")
    # The first chunk of a served answer may be all of it: nothing is left to decode.
    least = LEAST_S * (tokens - turns if decode == 0 else max(tokens, 1))
    if not least <= decode <= 1.01 * wall - prefill:
        times = f"wall_time {wall}, prefill_time {prefill} and decode_time {decode}"
        raise UsageError(f"{times} cannot be of {tokens} new_tokens")
    calls = _calls(choice, tokens)
    # The prefill may bring a turn's first token; a turn's last call may pass the limit.
    beyond = sum(calls) - tokens
    if not -turns <= beyond < turns * max(calls, default=1):
        raise UsageError(f"new_tokens are {tokens}, and accept_lengths add up to {sum(calls)}")
    left = tokens
    steps = list[StepRecord]()
    for brought in calls:
        steps.append(StepRecord(0, 0, brought - 1, min(brought, left)))
        left -= steps[-1].delivered
    return Generation(
        prompt_id=question,
        tokens=(UNKNOWN_TOKEN,) * tokens,
        finish="length",
        steps=tuple(steps),
        prefill_s=prefill,
        decode_s=decode,
        draft_s=0.0,
        target_s=0.0,
        latency_s=wall,
        sitting="",
        category=category,
    )


def _calls(choice: AnsweredChoice, tokens: int) -> tuple[int, ...]:
    """Returns tokens per target call; as even as they can be where only their number is known."""
    if choice.accept_lengths is not None:
        return choice.accept_lengths
    if choice.idxs is None:
        raise UsageError("neither accept_lengths nor idxs")
    count = sum(each + 1 for each in choice.idxs)
    if count < 1:
        raise UsageError(f"idxs is {list(choice.idxs)}")
    least, more = divmod(tokens, count)
    if least < 1:
        raise UsageError(f"{tokens} new_tokens of {count} target calls")
    return tuple(least + (call < more) for call in range(count))


def read_in(options: Namespace) -> None:
    """Reads the command line's files and writes the experiment. Raises ValueError: a file cannot be
    used, or two would be the same row.
    """
    categories = read_categories(options.questions) if options.questions else None
    given = {path.stem: read_answers(path, categories) for path in options.files}
    if len(given) < len(options.files) or "ar" in given:
        names = [path.stem for path in options.files]
        raise UsageError(f"files need names of their own, and none is 'ar', got {names}")
    if options.baseline:
        given = {"ar": read_answers(options.baseline, categories), **given}
    table = files.results_file(options.results, options.name)
    speeds = write_rows(table, given, options)
    print(f"rows: {table}")
    for decoder, speed in speeds.items() if options.baseline else ():
        theirs = given[decoder].mean_rate / given["ar"].mean_rate
        print(decoder, _SPEEDS.format(speed, theirs), sep=": ")
    for decoder, file in given.items():
        if file.failed:
            print(f"{decoder}: left out as failed: {', '.join(file.failed)}")


def write_rows(table: Path, systems: Mapping[str, AnswerFile], about: Namespace) -> dict[str, Any]:
    """Writes ``results.csv`` and ``records.parquet`` of decoders' files, the baseline's first, if
    there is one, which is called ``ar``; only questions that all of them answered count. ``about``
    says what files do not: ``harness``, whose they are; the ``task``; the ``pair`` ("": as the
    first file names its model); the ``temperature``. Returns the speed-ups. Raises ValueError: no
    question was answered by all.
    """
    first, *others = ({a.prompt_id for a in file.answers} for file in systems.values())
    common = first.intersection(*others)
    if not common:
        raise UsageError("no question was answered in all files")
    for decoder, file in systems.items():
        if left := [a.prompt_id for a in file.answers if a.prompt_id not in common]:
            print(f"{decoder}: left out, as other files lack them: {', '.join(left)}")
    done = {
        decoder: [each for each in file.answers if each.prompt_id in common]
        for decoder, file in systems.items()
    }
    pair = about.pair or next(iter(systems.values())).model
    rows = []
    parts = []
    for decoder, file in systems.items():
        lines = [[each.prompt_id, len(each.tokens), each.decode_s] for each in done[decoder]]
        run_id = files.digest([about.harness, about.task, decoder, file.model, lines])
        numbers = summarise(CellRecords(done[decoder], done.get("ar"))).row
        reason = f"pair: answers of {file.model}; {_IN_TURN if file.split else _WHOLE}"
        more = "" if decoder == "ar" else _DEPTH if file.each_known else _UNKNOWN
        untold = (*_UNTIMED, *_UNCOUNTED, *([] if file.split else ["prefill_s"]))
        untold = untold if file.each_known else (*untold, "acceptance_rate")
        row = {
            **{"pair": pair, "target": pair, "draft": "", "task": about.task, "decoder": decoder},
            **{"spec": "-", "temperature": about.temperature, "top_k": 0, "top_p": 1.0, "seed": 0},
            **{"batch_size": 1, "tree_attention": "true", "harness": about.harness},
            **{"lossless": "", "status": "complete", "run_id": run_id, "baseline": ""},
            # Their times are this machine's or another's, but not an older engine's of ours.
            **{"engine": ENGINE, "reason": reason + more},
            **{k: "" if v is None or k.startswith(untold) else v for k, v in numbers.items()},
        }
        rows.append(row)
        parts.append(parquet.pack(run_id, done[decoder], None))
    files.write_csv(table, rows, columns.order_names(name for row in rows for name in row))
    parquet.write(files.records_file(table), parquet.concat(parts))
    return {row["decoder"]: row["speedup"] for row in rows if row["decoder"] != "ar"}
