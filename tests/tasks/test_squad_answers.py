"""SQuAD's answers from the file to the score, in the package's schema and in the hub's."""

import datasets
import pytest

from spec_bench.metrics.quality import SCORES
from spec_bench.tasks import build_task

from .conftest import config

ANSWERS = [["Norway", "in Norway"], []]
ROWS = [
    {
        "id": f"q{number}",
        "title": "Oslo",
        "context": "Oslo is in Norway.",
        "question": "Where is Oslo?",
        "answers": {"text": texts, "answer_start": [11, 8][: len(texts)]},
    }
    for number, texts in enumerate(ANSWERS)
]


@pytest.fixture
def hub_file(tmp_path):
    """A Parquet file with the features of rajpurkar/squad_v2."""
    text, number = datasets.Value("string"), datasets.Value("int32")
    answers = datasets.Sequence({"text": text, "answer_start": number})
    names = ("id", "title", "context", "question")
    features = datasets.Features({**dict.fromkeys(names, text), "answers": answers})
    file = tmp_path / "validation-00000-of-00001.parquet"
    datasets.Dataset.from_list(ROWS, features=features).to_parquet(file)
    return file


def scores(predictions, references):
    return [SCORES[name]().score(predictions, references).value for name in ("exact_match", "f1")]


def test_the_prompt_allows_unanswerable_and_the_row_says_so(hub_file):
    task = build_task(config("squad", kind="local", path=str(hub_file)))
    instruction, title, *_ = task.examples()[0].turns[0].splitlines()
    assert instruction.endswith("answer: unanswerable")
    assert title == "Title: Oslo"
    assert task.data_file == f"{hub_file.name}, instructed"
    embedded = build_task(config("squad"))
    assert embedded.examples(1)[0].turns[0].startswith("Title: ")
    assert embedded.data_file == "squad.jsonl"


@pytest.mark.parametrize("sample", ["first", "random"])
def test_answered_questions_alone_are_asked_and_the_row_says_so(hub_file, sample):
    asked = {"answered_only": True, "instruction": None, "sample": sample}
    task = build_task(config("squad", kind="local", path=str(hub_file)) | asked)
    assert [example.id for example in task.examples()] == ["q0"]
    assert task.data_file == f"{hub_file.name}, answered questions only"
    every = build_task(config("squad") | {"answered_only": True})
    assert all(each.references[0] for each in every.examples(50))
    assert len(every.examples()) < len(build_task(config("squad")).examples())


def test_the_hubs_answers_are_references_and_none_means_unanswerable(hub_file):
    task = build_task(config("squad", kind="local", path=str(hub_file)))
    references = [task.references(example) for example in task.examples()]
    assert references == ANSWERS
    assert scores(["in Norway", "unanswerable"], references) == [1.0, 1.0]
    assert scores(["Norway", ""], references) == [1.0, 1.0]
    assert scores(["unanswerable", "Norway"], references) == [0.0, 0.0]
    assert scores(["Norway, Europe", ""], references) == [0.5, pytest.approx((2 / 3 + 1) / 2)]


def test_the_samples_own_answers_are_all_right():
    task = build_task(config("squad"))
    references = [task.references(example) for example in task.examples()]
    assert any(references)
    assert not all(references)  # some questions have no answer
    right = [golds[0] if golds else "unanswerable" for golds in references]
    assert scores(right, references) == [1.0, 1.0]
    assert 0.0 < scores([""] * len(right), references)[0] < 0.5


def test_an_answer_is_cut_where_the_task_stops_before_it_is_scored():
    task = build_task(config("squad"))
    assert task.postprocess(" Norway\nTitle: Bergen") == "Norway"
    assert scores([task.postprocess(" \nNorway")], [["Norway"]]) == [1.0, 1.0]
