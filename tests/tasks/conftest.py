"""What the task tests share: the YAML files, a tokenizer, and no way to the network."""

from pathlib import Path

import datasets
import pytest
import yaml

from spec_bench.jobs.config.compose import choose_prompt_source, choose_question_source
from spec_bench.tasks import build_task

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf" / "task"
SAMPLES = ROOT / "spec_bench" / "embedded" / "tasks"
WITH_SAMPLE = {path.stem for path in SAMPLES.glob("*.jsonl")} - {"spec_bench"}  # of no training
NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem in WITH_SAMPLE)


def config(name, **source):
    """The mapping of conf/task/NAME.yaml for the embedded pair, ``source``'s keys overridden."""
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text("utf-8"))
    kind = values["source"]["kind"]
    if kind == "${data_of:${pair.target},${.path}}":
        values["source"]["kind"] = choose_prompt_source("embedded:target", source.get("path"))
    elif kind == "${questions_of:${pair.target},${.path}}":
        values["source"]["kind"] = choose_question_source("embedded:target", source.get("path"))
    values["source"].update(source)
    return values


def local(name, path, *, split=None, **more):
    asked = {"split": split} if split else {}
    return build_task(config(name, kind="local", path=str(path), **asked) | more)


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    """No test reaches the hub, and caches end with the test."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))


class LetterTokenizer:
    """One id a letter, 1 before a text, 2 at its end; the interface of ``transformers``."""

    eos_token_id = 2

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    def __call__(self, text, add_special_tokens=True):
        ids = [10 + ord(letter) for letter in text]
        return {"input_ids": [1, *ids] if add_special_tokens else ids}

    def decode(self, ids):
        return "".join({1: "<s>", 2: "</s>"}.get(i) or chr(i - 10) for i in ids)

    def convert_ids_to_tokens(self, token):
        return self.decode([token])

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        assert not tokenize
        text = "".join(f"<{m['role']}>{m['content']}</>" for m in messages)
        return text + "<assistant>" * add_generation_prompt


@pytest.fixture
def plain_tokenizer():
    return LetterTokenizer()


@pytest.fixture
def chat_tokenizer():
    return LetterTokenizer(chat_template="any")
