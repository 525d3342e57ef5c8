"""Programs are judged by their tests, and can do nothing but compute."""

import gzip
import hashlib
import json
from dataclasses import replace

import pytest

from spec_bench.metrics.execution import PassAt1, check_code
from spec_bench.metrics.quality import check_references, quality_columns
from spec_bench.records.types import CodeReference
from spec_bench.tasks.source import Source, Wheel, load_rows
from spec_bench.tasks.task import Task

PROMPT = 'from math import pi\n\n\ndef area(r):\n    """Of a circle."""\n'
TESTS = "def check(f):\n    assert abs(f(2) - 12.566) < 0.01\n    assert f(0) == 0\n"
REFERENCE = CodeReference(TESTS, PROMPT, "area")
SCORE = PassAt1(seconds=1.0, memory=1 << 28)

RIGHT = {
    "goes on where the prompt ends": "    return pi * r * r\n",
    "its first blanks cut": "return pi * r * r",
    "two lines, the first one's blanks cut": "square = r * r\n    return pi * square",
    "a fenced block": "Here it is:\n```python\ndef area(r):\n    return pi * r ** 2\n```\nBye.",
    "a block that never ends": "```\ndef area(r):\n    return pi * r ** 2\n",
}
WRONG = {
    "another result": "    return r\n",
    "no Python": "    return pi * * r\n",
    "nothing": "",
    "an error": "    return pie * r * r\n",
    "never ends": "    while True:\n        pass\n",
    "all memory": "    return len([0] * 10**9)\n",
    "leaves early": "    import sys\n    sys.exit(0)\n",
    "leaves at once": "    import os\n    os._exit(0)\n",
    "says that it passed": "    print('passed')\n    import os\n    os._exit(0)\n",
    "its own block without the function": "```python\narea = None\n```",
}
HOSTILE = {
    "writes a file": "open({file!r}, 'w').write('x')",
    "writes a file past Python's open": "import os\n    os.open({file!r}, os.O_CREAT)",
    "removes a file": "import os\n    os.remove({kept!r})",
    "reaches the network": "import socket\n    socket.socket()",
    "starts a program": "import subprocess\n    subprocess.run(['touch', {file!r}])",
    "starts a program below Python's": "import os\n    os.system('touch {file}')",
    "forks": "import os\n    os.fork()",
    "calls C": "import ctypes\n    ctypes.CDLL(None)",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes_however_it_is_written(name):
    assert SCORE.passes(RIGHT[name], REFERENCE)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_fails(name):
    assert not SCORE.passes(WRONG[name], REFERENCE)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_program_may_not_do_is_refused(name, tmp_path):
    file, kept = tmp_path / "written", tmp_path / "kept"
    kept.touch()
    act = HOSTILE[name].format(file=str(file), kept=str(kept))
    assert not SCORE.passes(f"    {act}\n    return pi * r * r\n", REFERENCE)
    assert kept.exists() and not file.exists()
    tried = act.replace("\n", "\n    ")
    caught = f"    try:\n        {tried}\n    except PermissionError:\n        return pi * r * r\n"
    assert SCORE.passes(caught, REFERENCE)


def test_the_column_is_the_share_of_prompts():
    answers = [RIGHT["a fenced block"], WRONG["nothing"], RIGHT["a fenced block"], "return 1"]
    columns, signature = quality_columns("pass_at_1", answers, [[REFERENCE]] * 4)
    assert columns["pass_at_1"].value == 0.5
    assert "limit:3s" in signature


def test_a_prompt_without_tests_is_refused_before_anything_is_decoded():
    with pytest.raises(ValueError, match="prompt 1 has no tests"):
        check_references("pass_at_1", [[REFERENCE], ["return 1"]])
    with pytest.raises(ValueError, match="tests of prompt 0 are no Python"):
        check_code([[CodeReference("def check(", PROMPT, "area")]])


def test_values_that_tests_take_for_plain_ones_pass_from_the_program_to_its_tests():
    prompt = "from collections import Counter, namedtuple\n\n\ndef f(x):\n"
    tests = (
        "def check(g):\n    assert g([1, 1]) == {1: 2} and g((2, 3)) == (2, 3) and g(4j) == 4j\n"
        "    assert list(g('ab')) == ['a', 'b'] and f(None) is None and g(2**70) == 2**70\n"
        "    try:\n        g(0)\n    except ZeroDivisionError:\n        return\n    assert False\n"
    )
    answer = (
        "    kinds = {list: Counter, tuple: lambda x: namedtuple('Pair', 'a b')(*x), str: iter}\n"
        "    return 1 / x if x == 0 else kinds.get(type(x), lambda x: x)(x)\n"
    )
    assert SCORE.passes(answer, CodeReference(tests, prompt, "f"))


def test_rows_of_a_wheel_are_read_from_the_cache(tmp_path, monkeypatch):
    row = {"task_id": "a/0", "prompt": PROMPT, "entry_point": "area", "test": TESTS}
    data = gzip.compress(json.dumps(row).encode() + b"\n")
    digest = hashlib.sha256(data).hexdigest()
    file = tmp_path / "data" / digest[:12] / "rows.jsonl.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path))
    source = Source("wheel", wheel=Wheel("mine==1.0", "inside/rows.jsonl.gz", digest))
    assert load_rows(source, "mine") == [row]
    task = Task(
        name="mine",
        source=source,
        template=("{prompt}",),
        fields={"id": "task_id"},
        reference="test",
        scores=("pass_at_1",),
    )
    with pytest.raises(ValueError, match=r"task\.run_code=true"):
        task.examples()
    task = replace(task, run_code=True)
    (example,) = task.examples()
    assert example.id == "a/0" and task.data_file == "mine==1.0 rows.jsonl.gz"
    assert SCORE.passes(RIGHT["a fenced block"], example.references[0][0])  # type: ignore[arg-type]
