"""A file that a setting names is edited: the same command decodes anew and sets old rows aside."""

import json
import shutil

import pytest

from spec_bench.sinks.rows import find_superseded_ids
from spec_bench.system import files
from tests.jobs.tiny import TEXTS
from tests.question_files import written

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_rows(path, text):
    return written(path, *({"id": str(n), "document": text, "summary": text} for n in range(2)))


def make_copy(path, folder, name, text):
    """Copies a folder of the family, one of its JSON files with another key."""
    if not path.exists():
        shutil.copytree(folder, path)
    file = path / name
    file.write_text(json.dumps({**json.loads(file.read_text()), "note": text}))


def make_files(setting, path, family, edited):
    """Writes the file of a setting, as it is first or edited; returns the words that name it."""
    text = TEXTS[edited]
    named = [f"{setting}={path}"]
    if setting == "pair.chat_template":
        path = path.with_suffix(".jinja")
        path.write_text(TEMPLATE + text)
        return [f"{setting}={path}", "task.chat=true"]
    if setting == "pair.draft_vocabulary":
        path.write_text(json.dumps([*range(250 - edited)]))
    elif setting == "drafter.earlier":
        written(path, {"tokens": [5, 6, 7 + edited]})
        return [
            f"cells=[sd:2,{{decoder: suffix_decoding, name: mine, drafter: {{earlier: {path}}}}}]"
        ]
    elif setting == "task.source.path":
        make_rows(path, text)
    elif setting == "task.shots_from":
        make_rows(path, text)
        named.append("task.shots=1")
    elif setting == "pair.heads.eagle3":
        make_copy(path, family / "eagle3", "config.json", text)
        return [*named, "cells=[sd:2,eagle3]"]
    else:
        folder = family / ("draft" if setting == "pair.draft" else "target")
        make_copy(path, folder, "tokenizer_config.json", text)
    return named


SETTINGS = {
    "pair.target": ["ar", "sd"],
    "pair.draft": ["ar", "sd"],
    "pair.heads.eagle3": ["eagle3"],
    "pair.tokenizer": ["ar", "sd"],
    "pair.chat_template": ["ar", "sd"],
    "pair.draft_vocabulary": ["ar", "sd"],
    "drafter.earlier": ["mine"],
    "task.source.path": ["ar", "sd"],
    "task.shots_from": ["ar", "sd"],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_rows_of_a_file_as_it_was_are_set_aside(setting, run_job, family, tmp_path):
    for edited in (0, 1):
        words = make_files(setting, tmp_path / "file", family, edited)
        run_job("cells=[sd:2]", *words, "prompts=2", "warmup=0", "generation.max_new_tokens=4")
    folder = tmp_path / "results" / "default"
    rows = [row["decoder"] for row in files.read_csv(folder / files.RESULTS)]
    archived = [row["decoder"] for row in files.read_csv(folder / files.ARCHIVE)]
    assert len(rows) == len(set(rows)) >= 2
    assert archived == SETTINGS[setting]


def test_jobs_of_one_sweep_that_no_column_tells_apart_keep_their_rows():
    rows = [{"run_id": name, "decoder": "sd", "prompts": "2"} for name in ("old", "new")]
    ended = {"old": 1.0, "new": 2.0}
    assert find_superseded_ids(rows, ended, {"old": {0: 1.0}, "new": {1: 2.0}}) == set()
    assert find_superseded_ids(rows, ended, {"old": {0: 1.0}, "new": {0: 2.0}}) == {"old"}
    one_job = {"old": {0: 1.0}, "new": {0: 1.0, 1: 2.0}}
    assert find_superseded_ids(rows, ended, one_job) == set()
