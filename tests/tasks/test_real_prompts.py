"""Real question files and the embedded samples, where they are at hand."""

import pytest

from spec_bench.tasks import build_task
from spec_bench.tasks.source import EMBEDDED

from .conftest import NAMES, SHARED, config

QUESTIONS = [
    (SHARED / "mt_bench" / "question.jsonl", 80),
    (SHARED / "spec_bench" / "question.jsonl", 480),
]


@pytest.mark.parametrize(("file", "count"), QUESTIONS, ids=["mt_bench", "spec_bench"])
def test_question_files_of_fastchat_are_read_as_they_are(file, count, chat_tokenizer):
    if not file.exists():
        pytest.skip(f"real prompts are not here: no {file.name} in {file.parent.name}")
    task = build_task(config("mt_bench", kind="local", path=str(file)))
    examples = task.examples()
    assert len(examples) == count
    assert examples[0].id == "81"
    assert len(examples[0].turns) == 2
    for example in examples:
        assert all(turn.strip() for turn in example.turns)
        assert len(example.references) == len(example.turns)
    assert len(task.encode(examples[0], chat_tokenizer)) > 100


@pytest.mark.parametrize("name", NAMES)
def test_the_embedded_sample_has_100_examples_with_references(name, plain_tokenizer):
    if not (EMBEDDED / f"{name}.jsonl").exists():
        pytest.skip("the embedded samples are not built")
    task = build_task(config(name))
    examples = task.examples()
    assert len(examples) >= 100
    assert len(task.encode(examples[0], plain_tokenizer)) > 10
    unanswered = sum(not example.references[0] for example in examples)
    assert (0 < unanswered < len(examples) / 2) if name == "squad" else unanswered == 0
    if name == "mt_bench":
        assert {len(example.turns) for example in examples} == {2}
        assert task.messages(examples[0], turn=1)[1]["role"] == "assistant"
