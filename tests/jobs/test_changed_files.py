"""A file that a setting names is edited: the same command decodes anew and sets old rows aside."""

import importlib
import json
import shutil
import sys
from functools import partial

import pytest

from spec_bench.report.comparison import compare_results
from spec_bench.sinks.rows import find_superseded_ids
from spec_bench.system import files
from spec_bench.verify.base import rule
from tests.commands import verify
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


RULE = """
from spec_bench.verify.base import rule
from spec_bench.verify.walk import Verdict
from mended_rules.share import SHARE


@rule("mended", siblings=("iid",), mark="approximate")
def accept_a_share(p, q, tokens, valid):
    return Verdict(SHARE * valid.to(p.dtype), p)
"""


def import_rules(folder, share, monkeypatch):
    """Writes a package of another author and imports it, as a new process would."""
    package = folder / "mended_rules"
    for name, text in {"__init__": "", "share": f"SHARE = {share}\n", "rules": RULE}.items():
        package.mkdir(exist_ok=True)
        (package / f"{name}.py").write_text(text)
    for name in [name for name in sys.modules if name.startswith("mended_rules")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("mended_rules.rules")


@pytest.fixture
def ours(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield partial(import_rules, tmp_path, monkeypatch=monkeypatch)
    rule.forget("mended")


CELLS = "cells=[sd:2,{decoder: sd, name: mine, spec: 2, verifier: mended}]"


@pytest.mark.parametrize("more", [1, 2])
def test_another_packages_code_is_the_cells_as_the_bytes_of_its_models(
    more, ours, run_job, tmp_path, caplog, calls
):
    words = (CELLS, "warmup=0", "generation.max_new_tokens=8")
    folder = tmp_path / "results" / "default"

    def run(share, prompts=1):
        ours(share)
        calls.clear()
        run_job(*words, f"prompts={prompts}")
        return {row["decoder"]: row for row in files.read_csv(folder / files.RESULTS)}

    first = run(1.0)
    assert float(first["mine"]["block_efficiency"]) > 2 and first["sd"]["code_digest"] == ""
    second = run(0.0, more)
    assert float(second["mine"]["block_efficiency"]) == 1, "no answer of the old code is left"
    assert first["mine"]["code_digest"] != second["mine"]["code_digest"] != ""
    assert verify([str(tmp_path / "results")]) == 0
    (old,) = files.read_csv(folder / files.ARCHIVE)
    assert old["block_efficiency"] == first["mine"]["block_efficiency"]
    if more > 1:
        return
    assert {name for name, _ in calls} == {"ar", "mine"}
    assert "of other code: mended_rules/share.py of its rule was" in caplog.text
    assert first["mine"]["run_id"] == second["mine"]["run_id"]
    shutil.copytree(tmp_path / "results", tmp_path / "after")
    assert run(1.0)["mine"]["block_efficiency"] == first["mine"]["block_efficiency"]
    assert not calls, "the old code's cell came back"
    compared = compare_results(folder, tmp_path / "after" / "default")
    assert "another code digest" in compared.sentence


def test_decoders_of_our_own_parts_have_no_code_digest(run_job, tmp_path):
    (made, _) = run_job("cells=[sd:2]", "prompts=1", "warmup=0")
    cell = files.get_run_folder(tmp_path / "results", made.run_id)
    assert "code_digest" not in (cell / files.CELL).read_text() + (cell / files.MODELS).read_text()
    table = (tmp_path / "results" / "default" / files.RESULTS).read_text()
    assert "code_digest" not in table
