"""pass@1: the share of answers whose program passes its tests (HumanEval, arXiv 2107.03374, 2.1).

With one answer a prompt the estimator of pass@k is the plain share. Knows texts, and a process that
runs each program alone.
"""

import json
import logging
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from warnings import catch_warnings, simplefilter

from spec_bench.metrics.execution import run_worker
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import mean_interval
from spec_bench.metrics.quality import SCORES, References, Score
from spec_bench.records.types import CodeReference

log = logging.getLogger(__name__)
_WORKER = Path(__file__).with_name("code_worker.py")
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_GRACE_S = 5.0  # for the process to start and to end


@SCORES("pass_at_1")
@dataclass(frozen=True)
class PassAt1(Score):
    """Runs each answer's program with its tests.

    The program is the first of these that is Python: the answer's first fenced block that defines
    the function, behind what the prompt imports; the prompt and the answer; the prompt and the
    answer indented, whose first blanks were cut. None that is: the answer fails. HumanEval's own
    harness runs the prompt and the answer alone, so it fails answers of the first and third kind.
    """

    name = "pass_at_1"
    needs_references = False  # it names what it lacks itself
    seconds: float = 3.0
    memory: int = 1 << 30  # bytes

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """The mean over prompts, 0..1. Raises ValueError: unequal lengths, no prompts, or a prompt
        without tests.
        """
        self.check_given(len(predictions), references)
        tests = [_tests(golds, index) for index, golds in enumerate(references)]
        pairs = zip(predictions, tests, strict=True)
        return {self.name: mean_interval([float(self.passes(*each)) for each in pairs])}

    def signature(self, references: References) -> str:
        """Returns the rules in short."""
        python = ".".join(map(str, sys.version_info[:2]))
        return f"pass_at_1 python:{python}|limit:{self.seconds:g}s|memory:{self.memory >> 20}MiB"

    def check(self, references: References) -> None:
        """Makes sure that every prompt has tests that are Python. Raises ValueError: one has none,
        or some that are not, or no program can be run here.
        """
        for index, golds in enumerate(references):
            tests = _tests(golds, index)
            if not _is_python(_preamble(tests) + tests):
                raise ValueError(f"pass_at_1: the tests of prompt {index} are no Python")
        if lost := self.held():
            log.warning("pass_at_1: %s", lost)

    def passes(self, answer: str, tests: CodeReference) -> bool:
        """Whether one answer's program ends its tests, which call it from another process."""
        program = next(_programs(answer, tests), None)
        return program is not None and self._judged(program, tests)[0] == "passed"

    def held(self) -> str:
        """What this machine cannot hold of a program, in words; "" where it holds all. Raises
        ValueError: no program runs here, or one would run as root.
        """
        imports = "import collections, decimal, hashlib, heapq, math, random, re\n"
        tests = CodeReference("def check(f):\n    assert f(2) == {(2,)}", imports, "f")
        verdict, *lost = self._judged(f"{imports}def f(x):\n    return {{(x,)}}", tests)
        if verdict != "passed":
            raise ValueError("; ".join(["pass_at_1: no program runs on this machine", *lost]))
        return lost[0] if lost else ""

    def _judged(self, code: str, tests: CodeReference) -> list[str]:
        """The worker's verdict, and what it could not hold. Raises ValueError: it would be root."""
        limits = {"seconds": self.seconds, "memory": self.memory}
        request = {"code": code, "entry_point": tests.entry_point, **limits}
        asked = "".join(f"{json.dumps(each)}\n" for each in (request, _preamble(tests) + tests))
        with tempfile.TemporaryDirectory() as empty:
            run = run_worker(_WORKER, asked, self.seconds + _GRACE_S, folder=empty)
        if run.returncode == 1:
            raise ValueError(f"pass_at_1: {run.stderr.decode(errors='replace').splitlines()[-1]}")
        return run.stdout.decode(errors="replace").splitlines() or [""]


def _tests(golds: Sequence[str], index: int) -> CodeReference:
    gold = golds[0] if golds else None
    if not isinstance(gold, CodeReference):
        raise ValueError(f"pass_at_1: prompt {index} has no tests")
    return gold


def _preamble(tests: CodeReference) -> str:
    """Returns what the prompt imports and defines before the function."""
    return tests.prompt[: max(0, tests.prompt.rfind(f"def {tests.entry_point}"))]


def _programs(answer: str, tests: CodeReference) -> Iterator[str]:
    """What an answer may mean, most explicit first; Python only."""
    prompt, preamble = tests.prompt, _preamble(tests)
    blocks = (block for block in _BLOCK.findall(answer) if f"def {tests.entry_point}" in block)
    made = (
        *(f"{preamble}\n{block}" for block in blocks),
        prompt + answer,
        f"{prompt.rstrip()}\n    {answer.lstrip()}",
    )
    return (program for program in made if _is_python(program))


def _is_python(text: str) -> bool:
    try:
        with catch_warnings():
            simplefilter("ignore")
            compile(text, "<answer>", "exec", dont_inherit=True)  # parsing allows a stray return
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
