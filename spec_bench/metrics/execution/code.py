"""pass@1: the share of answers whose program passes its tests (HumanEval, arXiv 2107.03374, 2.1).

With one answer a prompt the estimator of pass@k is the plain share. Knows texts, and a process that
runs each program alone.
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
from spec_bench.metrics.intervals import mean_interval
from spec_bench.metrics.quality import SCORES, References, Score
from spec_bench.records.types import ProgramTests
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
_WORKER = Path(__file__).with_name("code_worker.py")
_INDENT = "    "  # of a body whose own was cut
_GRACE_S = 5.0  # for the process to start and to end


class WorkerReply(NamedTuple):
    """What the worker printed of a program."""

    verdict: str
    limitation: str = ""  # what this machine cannot hold of it, in words


class ProgramVerdict(NamedTuple):
    """The verdict of an answer's tests."""

    verdict: str
    in_one_process: bool = False  # whether they ran in one with the program


@SCORES("pass_at_1")
@dataclass(frozen=True)
class PassAt1(Score):
    """Runs each answer's program with its tests.

    What an answer means is ``extract_program``. One that imports what is not in the standard
    library scores 0, too, as it cannot be judged.
    """

    name = "pass_at_1"
    needs_references = False  # it names what it lacks itself
    seconds: float = 3.0
    memory: int = 1 << 30  # bytes

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """The mean over prompts, 0..1, and how many programs were late, lacked a package, or ran in
        one process with their tests. Raises ValueError: unequal lengths, no prompts, or a prompt
        without tests.
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
        """Returns the settings that the score depends on, as one text."""
        python = ".".join(map(str, sys.version_info[:2]))
        return f"pass_at_1 python:{python}|limit:{self.seconds:g}s|memory:{self.memory >> 20}MiB"

    def check(self, references: References) -> None:
        """Makes sure that every prompt has tests that are Python. Raises ValueError: one has none,
        or some that are not, or no program can be run here.
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
        """Runs an answer's tests in a process of their own, or in the program's where the values
        that they exchange cannot be sent to another.
        """
        program = extract_program(answer, tests)
        verdict = self._run_in_worker(program, tests).verdict if program else "failed"
        if verdict != "no plain value":
            return ProgramVerdict(verdict)
        return ProgramVerdict(self._run_in_worker(program, tests, True).verdict, True)

    def probe_sandbox_limitations(self) -> str:
        """Runs a small program to see what this machine cannot hold of one, in words; "" if all.
        Raises ValueError: no program runs here, or one would run as root.
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
        """Runs a program with its tests in a process of the worker's. Raises ValueError: it would
        be root.
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
    """Returns what the prompt imports and defines before the function."""
    definition = _make_definition_search(tests)(tests.prompt)
    return tests.prompt[: definition.start()] if definition else ""


def _make_definition_search(tests: ProgramTests) -> Callable[[str], re.Match[str] | None]:
    name = re.escape(tests.entry_point)
    return re.compile(rf"^(?:(?:async )?def {name}\b|{name} *=)", re.MULTILINE).search


def extract_program(answer: str, tests: ProgramTests) -> str:
    """Returns the program that an answer means; "" if it is no Python.

    That is the longest piece that defines the function, the last of these, without words around it,
    behind what the prompt imports. Where none does it is the prompt and the body that keeps most
    lines, whose first blanks, or those of all lines, may have been cut.
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
    """Returns the valid Python of a piece that defines the function; "" of any other piece."""
    search = _make_definition_search(tests)
    lines = piece.split("\n")
    begin = 0
    definition = search(piece)
    while definition and begin <= piece[: definition.start()].count("\n"):
        for head in (_get_preamble(tests), ""):  # what is imported from __future__ comes first
            kept_code = _cut_to_valid_python(head, "\n".join(lines[begin:]))
            if search(kept_code):
                return f"{head}\n{kept_code}"
        begin += kept_code.count("\n") + 1  # behind what is no Python
    return ""


def _cut_to_valid_python(head: str, text: str) -> str:
    """Returns the lines of a text up to the first that is no Python behind a head."""
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
