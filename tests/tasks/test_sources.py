"""Rows through the real datasets library, from files in the hub's schema."""

import json
import os
import subprocess
import sys

import datasets
import pytest

from spec_bench.tasks import build_task, source
from tests.said import naming

from .conftest import config

PAIRS = [{"translation": {"de": f"Satz {n}.", "en": f"Sentence {n}."}} for n in range(5)]
SQUAD = [
    {
        "id": f"q{n}",
        "title": "T",
        "context": f"Context {n}.",
        "question": "Q?",
        "answers": {"text": ["A"] * (n % 2), "answer_start": [0] * (n % 2)},
    }
    for n in range(4)
]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def local(name, path, **more):
    return build_task(config(name, kind="local", path=str(path), **more))


def test_parquet_with_nested_columns_is_read(tmp_path):
    datasets.Dataset.from_list(PAIRS).to_parquet(tmp_path / "test.parquet")
    examples = local("wmt18_deen", tmp_path / "test.parquet").examples()
    assert [e.references[0][0] for e in examples] == [f"Sentence {n}." for n in range(5)]


def test_parquet_with_the_hubs_translation_feature_is_read(tmp_path):
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    rows = datasets.Dataset.from_list(PAIRS, features=features)
    rows.to_parquet(tmp_path / "test.parquet")
    assert len(local("wmt14_ende", tmp_path / "test.parquet").examples()) == 5


def test_parquet_with_lists_in_a_struct_is_read(tmp_path):
    datasets.Dataset.from_list(SQUAD).to_parquet(tmp_path / "validation.parquet")
    examples = local("squad", tmp_path / "validation.parquet").examples()
    assert [(e.id, e.references) for e in examples[:2]] == [("q0", ((),)), ("q1", (("A",),))]


def test_a_json_array_is_read(tmp_path):
    rows = [{"instruction": "Do.", "input": "", "output": "Done."}]
    (tmp_path / "alpaca_data.json").write_text(json.dumps(rows))
    assert local("alpaca", tmp_path / "alpaca_data.json").examples()[0].turns == ("Do.",)


def test_csv_is_read(tmp_path):
    (tmp_path / "x.csv").write_text('document,summary\n"One, two.",Short.\n')
    assert local("xsum", tmp_path / "x.csv").examples()[0].turns == (
        "Article: One, two.\nSummary:",
    )


def test_a_saved_dataset_is_read(tmp_path):
    datasets.Dataset.from_list(PAIRS).save_to_disk(tmp_path / "saved")
    assert len(local("wmt18_deen", tmp_path / "saved").examples()) == 5


def test_a_folder_with_splits_takes_the_hubs_split_or_the_one_asked_for(tmp_path):
    folder = tmp_path / "data"  # the cache lies beside it
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", PAIRS)
    write_jsonl(folder / "test.jsonl", PAIRS[:2])
    assert len(local("wmt18_deen", folder).examples()) == 2
    assert len(local("wmt18_deen", folder, split="train").examples()) == 5


def test_an_unknown_split_is_refused_with_the_choices(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", PAIRS)
    write_jsonl(tmp_path / "test.jsonl", PAIRS)
    with pytest.raises(ValueError, match=naming("'dev'", "source.split")):
        local("wmt18_deen", tmp_path, split="dev").examples()


def test_limit_and_offset_choose_rows_and_keep_their_ids(tmp_path):
    write_jsonl(tmp_path / "x.jsonl", PAIRS)
    task = local("wmt18_deen", tmp_path / "x.jsonl")
    assert [e.id for e in task.examples()] == ["0", "1", "2", "3", "4"]
    assert task.examples(limit=2, offset=1) == task.examples()[1:3]
    assert [e.id for e in task.examples(limit=9, offset=4)] == ["4"]


def test_an_offset_past_the_end_is_refused(tmp_path):
    write_jsonl(tmp_path / "x.jsonl", PAIRS)
    with pytest.raises(ValueError, match=naming("offset 5")):
        local("wmt18_deen", tmp_path / "x.jsonl").examples(offset=5)


def test_ids_that_occur_twice_are_refused(tmp_path):
    write_jsonl(tmp_path / "x.jsonl", [SQUAD[0], SQUAD[0]])
    with pytest.raises(ValueError, match=naming("twice", "q0")):
        local("squad", tmp_path / "x.jsonl").examples()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=naming("nowhere.jsonl")):
        local("xsum", tmp_path / "nowhere.jsonl").examples()


def test_a_file_of_an_unknown_kind_is_refused_with_the_choices(tmp_path):
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(ValueError, match=naming("'x.txt'", ".parquet")):
        local("xsum", tmp_path / "x.txt").examples()


def test_a_file_that_does_not_parse_is_named(tmp_path):
    (tmp_path / "x.parquet").write_text("not parquet")
    with pytest.raises(ValueError, match=naming("xsum", "source.path", "x.parquet'")):
        local("xsum", tmp_path / "x.parquet").examples()


def test_a_missing_field_is_named_with_those_that_are_there(tmp_path):
    write_jsonl(tmp_path / "x.jsonl", [{"article": "a", "summary": "s"}])
    with pytest.raises(
        ValueError, match="xsum, line 1: no field 'document'; the row has article, s"
    ):
        local("xsum", tmp_path / "x.jsonl").examples()


def test_references_are_needed_only_where_something_is_scored(tmp_path):
    write_jsonl(tmp_path / "d.jsonl", [{"instruction": "Do.", "context": ""}])
    assert local("dolly", tmp_path / "d.jsonl").examples()[0].references == ((),)
    write_jsonl(tmp_path / "x.jsonl", [{"document": "a"}])
    with pytest.raises(ValueError, match=naming("'summary'")):
        local("xsum", tmp_path / "x.jsonl").examples()


def test_local_without_a_path_and_an_unknown_kind_are_refused():
    with pytest.raises(ValueError, match=naming("source.path")):
        build_task(config("xsum", kind="local")).examples()
    with pytest.raises(ValueError, match=naming("'disk'", "embedded", "hub", "local")):
        build_task(config("xsum", kind="disk")).examples()


def test_an_embedded_sample_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "EMBEDDED", tmp_path)
    (tmp_path / "squad.jsonl").write_text("")
    with pytest.raises(ValueError, match=naming("xsum.jsonl", "squad")):
        build_task(config("xsum")).examples()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "xsum",
            {
                "path": "EdinburghNLP/xsum",
                "split": "test",
                "revision": "refs/convert/parquet",
                "data_files": {"test": "default/test/*.parquet"},
                "verification_mode": "no_checks",
            },
        ),
        (
            "squad",
            {"path": "rajpurkar/squad_v2", "split": "validation", "revision": "main", "name": None},
        ),
    ],
)
def test_kind_hub_asks_the_datasets_library_for_the_public_id(name, expected, monkeypatch):
    asked = {}

    def load_dataset(path, **options):
        asked.update(options, path=path)
        return datasets.Dataset.from_list([*SQUAD] if name == "squad" else ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert build_task(config(name, kind="hub")).examples(limit=1)
    assert asked == expected


ROWS = [{"document": "d", "summary": "s", "id": "1"}]


def test_a_hub_folder_with_the_same_options_is_read(tmp_path):
    # The same call that goes to the hub, on a folder laid out like the hub's converted branch.
    for split in ("train", "test"):
        folder = tmp_path / "default" / split
        folder.mkdir(parents=True)
        datasets.Dataset.from_list(ROWS).to_parquet(folder / "0000.parquet")
    values = config("xsum", kind="hub")
    values["source"]["hub"] |= {"path": str(tmp_path), "revision": None}
    (example,) = build_task(values).examples()
    assert example.id == "1"


def test_the_hub_out_of_reach_says_what_else_there_is():
    values = config("xsum", kind="hub")
    with pytest.raises(ValueError, match=naming("EdinburghNLP/xsum", "source.kind=embedded")):
        build_task(values).examples()


UNREAD = """
from spec_bench.tasks.source import Hub, Source, UnreadDataError, load_rows
try:
    load_rows(Source("hub", Hub("someone/articles", "test")), "xsum")
except UnreadDataError as error:
    print(error)
"""


def test_a_hub_that_cannot_be_reached_is_not_asked_again_and_again(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", UNREAD],
        env={**kept, **nobody},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "task xsum" in done.stdout and "task.source.kind=embedded" in done.stdout
    assert "Retry" not in done.stderr
