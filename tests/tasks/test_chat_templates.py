"""A chat template is Jinja or a file of it, keeps what is said, and comes to an end."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from spec_bench.jobs.config.pair import EngineSettings, PairSettings, build_pair
from spec_bench.tasks import Example, build_task
from spec_bench.tasks import template as templates
from spec_bench.tasks.template import chat_text
from tests.said import naming
from tests.warm import run

TARGET = Path(__file__).resolve().parents[2] / "spec_bench/embedded/models/target"
TASK = {
    "name": "mine", "chat": True, "template": "{question}",
    "source": {"kind": "local", "path": "x.jsonl"},
}  # fmt: skip
EACH = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def tokenizer(template):
    made = AutoTokenizer.from_pretrained(TARGET)
    made.chat_template = template
    return made


def pair_of(chat_template):
    asked = replace(PairSettings("embedded:target", None), chat_template=chat_template)
    return build_pair(asked, EngineSettings("cpu", "float32"))


def test_a_file_is_read_and_the_text_is_part_of_the_run_id(tmp_path):
    for name in ("t.jinja", "t.txt"):
        (tmp_path / name).write_text(EACH, encoding="utf-8")
        assert pair_of(str(tmp_path / name)).chat_template == EACH
    assert pair_of(EACH).settings()["chat_template"] == EACH


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, None) for name in ("none.jinja", "{none}.jinja", "none.j2", "none", "x" * 300)),
        ("folder.jinja", Path.mkdir),
        ("pipe.jinja", os.mkfifo),
        ("bytes.jinja", lambda path: path.write_bytes(b"{{\xff}}")),
    ],
)
def test_what_is_no_text_file_is_one_line(tmp_path, name, make):
    if make:
        make(tmp_path / name)
    with pytest.raises(ValueError, match=naming("pair.chat_template", name[:30])) as refused:
        pair_of(str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_a_job_with_a_missing_template_is_refused_before_anything_is_loaded(tmp_path):
    status, _, said = run("spec_bench", "pair.chat_template=t.jinja", folder=tmp_path)
    assert status == 2
    assert len(said.splitlines()) == 1 and "'t.jinja'" in said


USER = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
LAST = "<{{ messages[-1].content }}>"


@pytest.mark.parametrize(
    ("template", "example", "turn", "dropped"),
    [
        ("t.jinja", Example("0", ("what is it?",), ((),)), 0, "user"),
        ("{{ messages | length }}", Example("0", ("what is it?",), ((),)), 0, "user"),
        (USER, Example("0", ("what is it?",), ((),), system="be brief"), 0, "system"),
        (LAST, Example("0", ("one?", "two?"), (("first",), ())), 1, "user"),
        (USER, Example("0", ("one?", "two?"), (("first",), ())), 1, "assistant"),
    ],
)
def test_a_template_that_drops_a_message_is_refused(template, example, turn, dropped):
    with pytest.raises(ValueError, match=naming("the chat template drops", dropped)):
        build_task(TASK).encode(example, tokenizer(template), turn)
    if dropped != "user":  # nothing is dropped where nothing of the kind is said
        build_task(TASK).encode(replace(example, system=""), tokenizer(template), 0)


@pytest.mark.parametrize(
    "change",
    ["m.content | trim", "m.content | tojson", "m.content | e", "m.content.split('\n')[0]"],
)
def test_a_template_may_write_what_is_said_differently(change):
    template = f"{{% for m in messages %}}{{{{ {change} }}}}{{% endfor %}}"
    said = [{"role": "user", "content": ' "1 < 2"\n é '}]
    assert "1" in chat_text(tokenizer(template), said)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(999999999) %}x{% endfor %}",
        LOOPS,
        "{% for a in range(99999) %}{% for m in 'x' * 99999 %}{{ m }}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(30) }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 9 ** (9 ** (9 ** 9)) }}",
        "{{ 1 // 0 }}",
        "{{ 'x' * (10 ** 18) }}",
        "{{ messages['a'].b.c }}",
        "{{ [].pop() }}",
    ],
)
def test_a_template_that_never_ends_or_fails_is_one_line_soon(template, monkeypatch):
    monkeypatch.setattr(templates, "LONGEST_S", 0.5)
    before = time.process_time()
    with pytest.raises(ValueError, match=r"the chat template fails: .") as refused:
        chat_text(tokenizer(template), [{"role": "user", "content": "x"}])
    assert "\n" not in str(refused.value)
    assert time.process_time() - before < 4


def test_after_a_template_that_never_ends_others_are_rendered_in_full(monkeypatch):
    monkeypatch.setattr(templates, "LONGEST_S", 0.5)
    with pytest.raises(ValueError, match="not done"):
        chat_text(tokenizer(LOOPS), [{"role": "user", "content": "x"}])
    until = time.process_time() + 0.8
    while time.process_time() < until:
        assert chat_text(tokenizer(EACH), [{"role": "user", "content": "x"}]) == "<user>x"
