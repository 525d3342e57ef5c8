"""The embedded samples, and FastChat's questions for MT-bench."""

import pytest

from spec_bench.tasks import build_task
from tests.question_files import question_file

from .conftest import NAMES, config


def test_fastchats_questions_are_read_as_they_are(tmp_path, chat_tokenizer):
    file = question_file(tmp_path, "mt_bench")
    task = build_task(config("mt_bench", kind="local", path=str(file)))
    examples = task.examples()
    assert [example.id for example in examples] == ["81", "101"]
    assert [len(example.turns) for example in examples] == [2, 2]
    assert [len(example.references) for example in examples] == [2, 2]
    assert "lighthouse" in chat_tokenizer.decode(task.encode(examples[0], chat_tokenizer))


@pytest.mark.parametrize("name", NAMES)
def test_the_embedded_sample_has_100_examples_with_references(name, plain_tokenizer):
    task = build_task(config(name))
    examples = task.examples()
    assert len(examples) >= 100
    assert len(task.encode(examples[0], plain_tokenizer)) > 10
    unanswered = sum(not example.references[0] for example in examples)
    assert (0 < unanswered < len(examples) / 2) if name == "squad" else unanswered == 0
    if name == "mt_bench":
        assert {len(example.turns) for example in examples} == {2}
        assert task.messages(examples[0], turn=1)[1]["role"] == "assistant"
