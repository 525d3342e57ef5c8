"""What a notebook calls: prompts are decoded, jobs give tables, mistakes are one line."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spec_bench
from spec_bench import api

PROMPT = "Article: The harbour was closed after a storm took the roof of the school.\nSummary:"


@pytest.fixture(scope="module")
def pair() -> api.LoadedPair:
    return spec_bench.load_pair("embedded")


def test_the_documented_example_runs(tmp_path: Path) -> None:
    names = {"folder": str(tmp_path), "__name__": "example"}
    found = doctest.testmod(api, extraglobs=names)
    assert found.attempted == 7
    assert found.failed == 0


@pytest.mark.parametrize("decoder", ["ar", "sd:3", "rsd_s:4x3", "medusa", "dsbd:4x2@0.9"])
def test_a_trace_tells_where_every_token_of_an_answer_came_from(
    pair: api.LoadedPair, decoder: str
) -> None:
    answer = pair.decode(PROMPT, decoder, max_new_tokens=12, seed=3)
    assert answer.text and len(answer.tokens) <= 12
    assert tuple(t for step in answer.steps for t in step.tokens) == answer.tokens
    assert all(0 <= step.accepted <= step.depth for step in answer.steps)
    assert answer.block_efficiency >= 1


def test_greedy_answers_are_the_same_whoever_drafts(pair: api.LoadedPair) -> None:
    answers = {
        pair.decode(PROMPT, decoder, temperature=0, max_new_tokens=16).tokens
        for decoder in ("ar", "sd:3", {"decoder": "rsd_c", "spec": "2-2-1"})
    }
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("decoder", "settings", "named"),
    [
        ("rsd_x:4x3", {}, "rsd_x"),
        ("sd:2-2", {}, "2-2"),
        ("sd:3", {"temperature": -1}, "decode.temperature .* got -1"),
        ("sd:3", {"top_k": 1.5}, "decode.top_k .* got 1.5"),
    ],
)
def test_what_cannot_be_decoded_is_named(
    pair: api.LoadedPair, decoder: str, settings: dict, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        pair.decode(PROMPT, decoder, **settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"name": "nobody"}, "nobody"),
        ({"target": "embedded:none"}, "embedded:none"),
        ({"heads": {"medusae": "x"}}, "medusae"),
        ({"dtype": "float12"}, "float12"),
    ],
)
def test_a_pair_that_is_not_there_is_named(settings: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        spec_bench.load_pair(**settings)


def test_a_job_that_cannot_be_is_refused_as_on_the_command_line(tmp_path: Path) -> None:
    for wrong, named in (("sede=1", "seed"), ("task=xsun", "xsum"), ("seed=-1", "-1")):
        with pytest.raises(ValueError, match=named):
            spec_bench.run(wrong, results=str(tmp_path))  # type: ignore[operator]
    assert not list(tmp_path.iterdir())


def test_the_package_is_light_until_it_is_asked() -> None:
    heavy = ["torch", "hydra", "pandas", "pydantic"]
    code = f"import sys, spec_bench; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"<!-- api -->\n```python\n(.*?)```\n", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", shown], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()[-4:]
    assert [line.split()[1] for line in table[1:]] == ["ar", "sd", "rsd_s"]
    assert (tmp_path / "results/default/results.csv").is_file()
