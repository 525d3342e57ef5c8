"""What is promised of tokens, by number format: the same in float32, in 16 bits by batch."""

import pytest

from spec_bench.jobs.app import build_unpinned_settings
from spec_bench.jobs.config.compose import compose_config
from tests.jobs.tiny import TEXTS, cut, overrides, tokens_of
from tests.question_files import written

QUICK = ("warmup=0", "cells=[sd:3,rsd_s:2x2]", "prompts=6")


@pytest.fixture
def decoded(family, run_job, tmp_path):
    """Decodes six prompts of six lengths; by decoder, the tokens of each."""
    lines = [
        {"id": str(row), "document": " ".join(TEXTS[: 1 + row % 4])[row:], "summary": "x"}
        for row in range(6)
    ]
    for name, rows in (("rows", lines), ("turned", lines[::-1])):
        written(tmp_path / f"{name}.jsonl", *rows)

    def decode(folder, *more, rows="rows"):
        source = f"task.source.path={tmp_path / rows}.jsonl"
        results = run_job(*QUICK, source, *more, results=tmp_path / folder)
        return {
            each.facts.decoder: (each.run_id, tokens_of(tmp_path / folder, each.run_id))
            for each in results
        }

    return decode


def tokens(found):
    return {decoder: by_prompt for decoder, (_, by_prompt) in found.items()}


def test_in_float32_a_text_hangs_on_no_batch_order_thread_or_resume(decoded, tmp_path):
    alone = decoded("alone")
    others = {
        "static": decoded("static", "engine.batch_size=4"),
        "continuous": decoded("on", "engine.batch_size=3", "engine.batching=continuous"),
        "turned": decoded("turned", "engine.batch_size=4", rows="turned"),
        "threads": decoded("threads", "engine.batch_size=2", "engine.threads=2"),
    }
    for run_id, _ in others["static"].values():
        cut(tmp_path / "static", run_id, 3, tmp_path / "cut")  # within a batch
    others["resumed"] = decoded("cut", "engine.batch_size=4")
    for name, found in others.items():
        assert tokens(found) == tokens(alone), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_the_same_batches_give_the_same_tokens_behind_a_resume_too(
    dtype, decoded, tmp_path, caplog
):
    given = (f"engine.dtype={dtype}", "engine.batch_size=2")
    whole = decoded("whole", *given)
    assert f"{dtype} in batches of 2" in caplog.text
    for run_id, _ in whole.values():
        cut(tmp_path / "whole", run_id, 2, tmp_path / "cut")  # between two batches
    assert tokens(decoded("again", *given)) == tokens(decoded("cut", *given)) == tokens(whole)
    caplog.clear()
    decoded("alone", given[0])
    assert "in batches of" not in caplog.text


@pytest.mark.parametrize(
    ("given", "repeatable"),
    [
        ((), True),
        (("engine.batch_size=8",), True),
        (("engine.dtype=bfloat16",), True),
        (("engine.dtype=bfloat16", "engine.batch_size=8"), False),
        (("engine.dtype=float16", "engine.batch_size=8"), False),
    ],
)
def test_other_tokens_are_an_error_but_in_batches_of_16_bit_numbers(given, repeatable, family):
    job = build_unpinned_settings(compose_config(overrides(family, "results", *given)))
    assert job.is_repeatable == repeatable
