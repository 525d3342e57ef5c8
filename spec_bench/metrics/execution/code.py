"""pass@1: the share of answers whose program passes its tests (HumanEval, arXiv 2107.03374, 2.1).

With one answer per prompt the estimator of pass@k is this share. Each program runs alone, in a
process of ``code_worker``.
"""

import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

from spec_bench.metrics.execution import run_worker, split_fences
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.quality import SCORES, References, Score
from spec_bench.metrics.score_intervals import mean_interval
from spec_bench.records.types import ProgramTests
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
_WORKER = Path(__file__).with_name("code_worker.py")
_INDENT = "    "  # for a body without its own indent
_GRACE_S = 5.0  # for the process to start and to end


class WorkerReply(NamedTuple):
    """The printed reply of the worker."""

    verdict: str
    limitation: str = ""  # how the program's isolation is incomplete on this machine, in words


class ProgramVerdict(NamedTuple):
    """The verdict of the tests of an answer."""

    verdict: str
    in_one_process: bool = False  # whether the tests ran in the program's process


@SCORES("pass_at_1")
@dataclass(frozen=True)
class PassAt1(Score):
    """Runs each answer's program with its tests.

    ``extract_program`` defines an answer's program. A program that imports a package outside of the
    standard library cannot be judged; it scores 0.
    """

    name = "pass_at_1"
    needs_references = False  # raises its own error about missing tests
    seconds: float = 3.0
    memory: int = 1 << 30  # bytes

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """Computes the mean over prompts, 0..1, and the numbers of programs that timed out, lacked
        a package, or ran in the same process as their tests. Raises UsageError for unequal lengths,
        or if a prompt has no tests.
        """
        self.check_given(len(predictions), references)
        tests = [_require_program_tests(golds, index) for index, golds in enumerate(references)]
        results = [self._judge_answer(*pair) for pair in zip(predictions, tests, strict=True)]
        verdicts = [result.verdict for result in results]
        return {
            self.name: mean_interval([float(verdict == "passed") for verdict in verdicts]),
            "program_timeouts": Interval(float(verdicts.count("timeout"))),
            "programs_not_judged": Interval(float(verdicts.count("no package"))),
            "programs_judged_together": Interval(
                float(sum(result.in_one_process for result in results))
            ),
        }

    def signature(self, references: References) -> str:
        """Returns the version of Python and the limits of time and memory as text."""
        python = ".".join(map(str, sys.version_info[:2]))
        return f"pass_at_1 python:{python}|limit:{self.seconds:g}s|memory:{self.memory >> 20}MiB"

    def check(self, references: References) -> None:
        """Checks that every prompt has tests in valid Python, and that programs run on this
        machine. Raises UsageError if not; warns if their isolation is incomplete.
        """
        for index, golds in enumerate(references):
            tests = _require_program_tests(golds, index)
            if _cut_to_valid_python(_get_preamble(tests), tests) != tests:
                raise UsageError(f"pass_at_1: the tests of prompt {index} are no Python")
        if limitation := self.probe_sandbox_limitations():
            log.warning("pass_at_1: %s", limitation)

    def passes(self, answer: str, tests: ProgramTests) -> bool:
        """Returns whether one answer's program passes its tests."""
        return self._judge_answer(answer, tests).verdict == "passed"

    def _judge_answer(self, answer: str, tests: ProgramTests) -> ProgramVerdict:
        """Runs an answer's tests in a separate process, or in the program's if the values that they
        exchange cannot be sent between processes.
        """
        program = extract_program(answer, tests)
        verdict = self._run_in_worker(program, tests).verdict if program else "failed"
        if verdict != "no plain value":
            return ProgramVerdict(verdict)
        return ProgramVerdict(self._run_in_worker(program, tests, True).verdict, True)

    def probe_sandbox_limitations(self) -> str:
        """Runs a small program to find out how isolation is incomplete on this machine, in words;
        "" if it is complete. Raises UsageError if no program runs, or if it would run as root.
        """
        imports = "import collections, decimal, hashlib, heapq, math, random, re\n"
        tests = ProgramTests("def check(f):\n    assert f(2) == {(2,)}", imports, "f")
        reply = self._run_in_worker(f"{imports}def f(x):\n    return {{(x,)}}", tests)
        if reply.verdict != "passed":
            reasons = ["pass_at_1: no program runs on this machine", reply.limitation]
            raise UsageError("; ".join(filter(None, reasons)))
        return reply.limitation

    def _run_in_worker(
        self, code: str, tests: ProgramTests, in_one_process: bool = False
    ) -> WorkerReply:
        """Runs a program with its tests in a worker process. Raises UsageError if it would run as
        root.
        """
        request = {
            "code": code,
            "entry_point": tests.entry_point,
            "together": in_one_process,
            "seconds": self.seconds,
            "memory": self.memory,
        }
        lines = "".join(
            f"{json.dumps(message)}\n" for message in (request, _get_preamble(tests) + tests)
        )
        with tempfile.TemporaryDirectory() as empty:
            process = run_worker(_WORKER, lines, self.seconds + _GRACE_S, folder=empty)
        if process.returncode == 1:
            raise UsageError(
                f"pass_at_1: {process.stderr.decode(errors='replace').splitlines()[-1]}"
            )
        reply_lines = process.stdout.decode(errors="replace").splitlines()
        return WorkerReply(*reply_lines[:2]) if reply_lines else WorkerReply("timeout")


def _require_program_tests(golds: Sequence[str], prompt_index: int) -> ProgramTests:
    gold = golds[0] if golds else None
    if not isinstance(gold, ProgramTests):
        raise UsageError(f"pass_at_1: prompt {prompt_index} has no tests")
    return gold


def _get_preamble(tests: ProgramTests) -> str:
    """Returns the part of the prompt before the function: its imports and definitions."""
    definition = _make_definition_search(tests)(tests.prompt)
    return tests.prompt[: definition.start()] if definition else ""


def _make_definition_search(tests: ProgramTests) -> Callable[[str], re.Match[str] | None]:
    name = re.escape(tests.entry_point)
    return re.compile(rf"^(?:(?:async )?def {name}\b|{name} *=)", re.MULTILINE).search


def extract_program(answer: str, tests: ProgramTests) -> str:
    """Extracts an answer's program; "" if there is no valid Python.

    The program is the longest piece of the answer that defines the function (the last of equal
    length), without words around it, after the prompt's preamble. If no piece defines it, the
    program is the prompt followed by the body that keeps most lines; the indent of the body's first
    line, or of all its lines, may be missing.
    """
    fenced_pieces, other_pieces = (
        [p for p in pieces if p.strip()] for pieces in split_fences(answer)
    )
    programs = [
        _extract_defining_program(dedent(piece), tests)
        for piece in (*other_pieces[::-1], *fenced_pieces[::-1])
    ]
    if any(programs):
        return max(programs, key=lambda program: program.count("\n"))
    prompt_head = f"{tests.prompt.rstrip()}\n"
    bodies = [indent(dedent(piece), _INDENT) for piece in fenced_pieces]
    bodies += [_INDENT + piece.lstrip() for piece in (*fenced_pieces, *other_pieces)]
    bodies += [indent(dedent(piece), _INDENT) for piece in other_pieces]
    candidates = [(prompt_head, body) for body in bodies] + [(tests.prompt, answer)]
    candidates = [(head, _cut_to_valid_python(head, body)) for head, body in candidates]
    head, kept_body = max(candidates, key=lambda candidate: len(candidate[1].splitlines()))
    return head + kept_body if kept_body.strip() else ""


def _extract_defining_program(piece: str, tests: ProgramTests) -> str:
    """Extracts valid Python that defines the function from a piece; "" if it does not define it."""
    search = _make_definition_search(tests)
    lines = piece.split("\n")
    begin = 0
    definition = search(piece)
    while definition and begin <= piece[: definition.start()].count("\n"):
        for head in (_get_preamble(tests), ""):  # what is imported from __future__ comes first
            kept_code = _cut_to_valid_python(head, "\n".join(lines[begin:]))
            if search(kept_code):
                return f"{head}\n{kept_code}"
        begin += kept_code.count("\n") + 1  # after the line that is not Python
    return ""


def _cut_to_valid_python(head: str, text: str) -> str:
    """Cuts a text that follows ``head`` before its first line that is not valid Python."""
    lines = (head + text).split("\n")
    head_lines = head.count("\n")
    while len(lines) > head_lines:
        try:
            with catch_warnings():
                simplefilter("ignore")
                # parsing allows a stray return
                compile("\n".join(lines), "<answer>", "exec", dont_inherit=True)
            break
        except SyntaxError as error:
            lines = lines[: min(error.lineno or 1, len(lines)) - 1]
        except (ValueError, RecursionError, MemoryError):
            return ""
    return "\n".join(lines)[len(head) :]
