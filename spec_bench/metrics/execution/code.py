"""pass@1: the share of answers whose program passes its tests (HumanEval, arXiv 2107.03374, 2.1).

With one answer a prompt the estimator of pass@k is the plain share. Knows texts, and a process that
runs each program alone.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from warnings import catch_warnings, simplefilter

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import mean_interval
from spec_bench.records.code_reference import CodeReference

_WORKER = Path(__file__).with_name("code_worker.py")
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_GRACE_S = 5.0  # for the process to start and to end


@dataclass(frozen=True)
class PassAt1:
    """Runs each answer's program with its tests.

    The program is the first of these that is Python: the answer's first fenced block that defines
    the function, behind what the prompt imports; the prompt and the answer; the prompt and the
    answer indented, whose first blanks were cut. None that is: the answer fails. HumanEval's own
    harness runs the prompt and the answer alone, so it fails answers of the first and third kind.

    Attributes:
        seconds: that a program may take.
        memory: bytes that it may take.
    """

    seconds: float = 3.0
    memory: int = 1 << 30

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Interval:
        """Mean over prompts, 0..1.

        Raises:
            ValueError: unequal lengths, no prompts, or a prompt without tests.
        """
        if len(predictions) != len(references):
            raise ValueError(
                f"pass_at_1: {len(predictions)} predictions but references for "
                f"{len(references)} prompts"
            )
        tests = [_tests(golds, index) for index, golds in enumerate(references)]
        pairs = zip(predictions, tests, strict=True)
        return mean_interval([float(self.passes(answer, test)) for answer, test in pairs])

    def columns(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> dict[str, Interval]:
        """The share under its name."""
        return {"pass_at_1": self.score(predictions, references)}

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """The rules in short."""
        python = ".".join(map(str, sys.version_info[:2]))
        return f"pass_at_1 python:{python}|limit:{self.seconds:g}s|memory:{self.memory >> 20}MiB"

    def passes(self, answer: str, tests: CodeReference) -> bool:
        """Whether one answer's program ends its tests."""
        program = next(_programs(answer, tests), None)
        if program is None:
            return False
        return self._ran(f"{program}\n{tests}\ncheck({tests.entry_point})\n")

    def _ran(self, code: str) -> bool:
        """Whether code ran to its end within the limits, in a process of its own."""
        word = secrets.token_hex(16)
        request = {"code": code, "seconds": self.seconds, "memory": self.memory, "word": word}
        with tempfile.TemporaryDirectory() as empty:
            try:
                # -I, -S: no user's folder, environment or package is there to import.
                run = subprocess.run(
                    [sys.executable, "-I", "-S", "-B", str(_WORKER)],
                    input=json.dumps(request).encode() + b"\n",
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    cwd=empty,
                    env={},
                    start_new_session=True,
                    timeout=self.seconds + _GRACE_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return False
        return run.stdout.decode(errors="replace") == f"passed {word}\n"


def check_code(references: Sequence[Sequence[str]]) -> None:
    """Makes sure that every prompt has tests that are Python, before anything is decoded.

    Raises:
        ValueError: one has none, or some that are not.
    """
    for index, golds in enumerate(references):
        tests = _tests(golds, index)
        if not _is_python(str(tests)):
            raise ValueError(f"pass_at_1: the tests of prompt {index} are no Python")


def _tests(golds: Sequence[str], index: int) -> CodeReference:
    gold = golds[0] if golds else None
    if not isinstance(gold, CodeReference):
        raise ValueError(f"pass_at_1: prompt {index} has no tests")
    return gold


def _programs(answer: str, tests: CodeReference) -> Iterator[str]:
    """What an answer may mean, most explicit first; Python only."""
    prompt = tests.prompt
    preamble = prompt[: prompt.rfind(f"def {tests.entry_point}")]
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
