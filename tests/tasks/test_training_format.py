"""The prompts are those that the embedded models were trained on."""

import json
from random import Random

import pytest

from spec_bench.tasks import build_task

from .conftest import NAMES, ROOT, config


@pytest.mark.parametrize("name", NAMES)
def test_prompts_equal_what_the_generator_trained_on(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    world = "scripts.family.world"
    samples = pytest.importorskip(
        f"{world}.samples", reason="the generator is not in this checkout"
    )
    databases = pytest.importorskip(f"{world}.databases")
    rows = [samples.draw_sample(name, Random(seed), seed) for seed in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows if name == "spider" else ():
        file = tmp_path / "database" / row["db_id"] / f"{row['db_id']}.sqlite"
        databases.build(row["db_id"], file)
    told = config(name, kind="local", path=str(tmp_path / "rows.jsonl"))
    if "instruction" in told:  # of the embedded sample there is none
        told["instruction"] = None
    task = build_task(told)
    for row, example in zip(rows, task.examples(), strict=True):
        trained = samples.turns(name, row)
        assert len(trained) == len(example.turns)
        for turn, (prompt, answer) in enumerate(trained):
            if task.chat:
                content = task.messages(example, turn)[-1]["content"]
                assert prompt == f"<|user|>\n{content}\n<|assistant|>\n"
            else:
                assert prompt == task.prompt(example)
            assert answer.strip() in (task.references(example, turn) or ["unanswerable"])
