"""Keys planted in what a job is told and in what a server says are nowhere afterwards."""

import base64
import json
import re
import shutil

import pyarrow.parquet
import pytest

from spec_bench.jobs import app
from spec_bench.jobs.config.flags import parse_job_arguments
from spec_bench.records import checksums
from spec_bench.system import files
from spec_bench.system.redaction import SERVER_KEY_VARIABLE, RedactedLogRecord
from tests.commands import report
from tests.server.completions import Completions, serving

PLANTED = {
    "an option of how it was started": "kDog8Window4Lamp",
    "a variable of how it was started": "kCat7Ladder2Moon",
    "the model's name": "sk-live-5tYq8Lm2Wx9Zr4Vb",
    "the address's path": "sk-live-7pQn3Ks6Jd1Hf0Gc",
    "the target's path": "hf_9aBcD3eFgH5iJkL7mNoP",
    "the environment": "correct-horse-41-battery-staple",
    "an address's password": "hunter2hunter2",
    "an address's query": "kSun3River6Stone",
}
SPELT = PLANTED["the environment"]
FORMS = [
    base64.b64encode(f"user:{SPELT}".encode()).decode(), SPELT.encode().hex(), " ".join(SPELT),
    "".join(f"\\u{ord(each):04x}" for each in SPELT), SPELT[:19], SPELT.replace("-", "%2D"),
]  # fmt: skip


def run(monkeypatch, *arguments):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return app.main(parse_job_arguments("run", arguments))


def letters(data):
    """A file's letters and digits, as they are and as base64 has them."""
    return re.sub(rb"[^a-z0-9]", b"", data.lower())


def contents(folder):
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        yield path, path.read_bytes()
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
            yield path, json.dumps([table.to_pylist(), str(table.schema)], default=str).encode()


def test_what_is_kept_or_logged_has_no_key_and_all_else(tmp_path):
    option = PLANTED["an option of how it was started"]
    command = ["run", f"server.started=serve --api-key {option}", "seed=0"]
    content = {"starts": [{"command": command, "seconds": 1.5}], "sizes": (1, 2), "none": None}
    kept = checksums.redact_and_add_checksum(content)
    files.write_redacted_json(tmp_path / "cell.json", kept)
    found = checksums.read_verified_json(tmp_path / "cell.json")
    hidden = ["run", "server.started=serve --api-key ***", "seed=0"]
    assert found["starts"] == [{"command": hidden, "seconds": 1.5}]
    assert (found["sizes"], found["none"]) == ([1, 2], None)
    record = RedactedLogRecord("a", 20, "file", 1, "asked %s of %s", ("http://a:b@host", "n"), None)
    assert record.getMessage() == "asked http://***@host of n"


def test_a_config_and_a_plan_are_shown_without_keys(tmp_path, monkeypatch, capfd):
    option, _, name, *_, password, query = PLANTED.values()
    words = [f"pair.name={name}", f"results={tmp_path}", "task=xsum", "prompts=1", "cells=[sd:2]"]
    started = f"server.started='serve {'--many more-words ' * 4}--api-key {option}'"
    address = f"server.url=http://me:{password}@host/v1?key={query}"
    assert run(monkeypatch, *words, started, address, "--cfg", "job") == 0
    assert run(monkeypatch, *words, "plan=true") == 0
    said = capfd.readouterr().out
    assert said.count("***") >= 4 and "--api-key ***" in said and "pair ***" in said
    assert not [key for key in (option, name, password, query) if key in said]


@pytest.mark.slow
def test_planted_keys_are_in_no_file_and_no_line_of_output(family, tmp_path, monkeypatch, capfd):
    target = tmp_path / "models" / PLANTED["the target's path"] / "target"
    shutil.copytree(family / "target", target)
    monkeypatch.setenv(SERVER_KEY_VARIABLE, PLANTED["the environment"])
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    option, variable, model, path, _, _, password, query = PLANTED.values()
    server = Completions(lambda _: [[5], [6, 7, 8], [9]])
    server.refusal = ", ".join(["", *FORMS])
    server.faults += ["none", "none", 403, "none"]
    with serving(server) as served:
        status = run(
            monkeypatch,
            *("-m", "engine=server", f"server.url={served.url}/{path}", f"server.model={model}"),
            f'server.started="API_TOKEN={variable} vllm serve m --api-key {option}"',
            *(f"pair.target={target}", "pair.draft=null", "task=xsum", "task.source.kind=local"),
            *(f"task.source.path={family / 'rows.jsonl'}", "generation.max_new_tokens=5"),
            *("generation=greedy", f"results={results}", "prompts=2", "server.wait_s=0"),
            *("engine.threads=1", "seed=0,1", "warmup=0", "sink.wandb.enabled=true"),
        )
    assert status == 1  # of a prompt that was refused
    assert run(monkeypatch, f"server.url=http://me:{password}@host/v1?key={query}") == 2
    table = results / "default" / "results.csv"
    assert report(["page", str(table)]) == 0
    assert report([str(table)]) == 0
    said = capfd.readouterr()
    every = [("stdout", said.out.encode()), ("stderr", said.err.encode()), *contents(results)]
    names = {str(getattr(place, "name", place)) for place, _ in every}
    assert {"cell.json", "results.csv", "multirun.yaml", "stdout", "stderr"} <= names
    assert any(name.endswith(".wandb") for name in names)
    assert b"status 403: refused: Bearer ***" in dict(every)[table]
    planted = {place: letters(key.encode()) for place, key in PLANTED.items()}
    planted |= {f"form {n}": letters(form.encode())[:12] for n, form in enumerate(FORMS)}
    planted["the first form"] = letters(FORMS[0].encode())[12:24]
    found = [
        (str(place), where)
        for place, data in every
        for where, key in planted.items()
        if key in letters(data)
    ]
    assert found == []
