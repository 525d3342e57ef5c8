"""The number of threads where none is asked for, and the word where capturing costs too much."""

import json
import logging
from time import sleep

import pytest
import torch

from spec_bench.engine.cache import CachePool
from spec_bench.jobs.work import models

PROBED = ("engine.threads=null", "cells=[]", "decoder=sd", "spec=2")


@pytest.fixture(autouse=True)
def as_before():
    usual = torch.get_num_threads()
    yield
    torch.set_num_threads(usual)


def pass_that_takes(one, many):
    """A pass of so many seconds on one thread, and on more."""
    return lambda: sleep(one if torch.get_num_threads() == 1 else many)


@pytest.mark.parametrize(("one", "many", "found"), [(0.001, 0.006, 1), (0.006, 0.001, 2)])
def test_the_faster_number_of_threads_is_kept_and_not_timed_again(tmp_path, one, many, found):
    torch.set_num_threads(2)
    kept = tmp_path / "runs" / "threads.json"
    assert models.faster(kept, "model, machine", 2, pass_that_takes(one, many)) == found
    assert json.loads(kept.read_text()) == {"model, machine": found}
    assert torch.get_num_threads() == 2  # timing left it

    def never():
        raise AssertionError("timed again")

    assert models.faster(kept, "model, machine", 2, never) == found
    assert models.faster(kept, "model, machine", 1, never) == 1  # a worker that may use one
    assert models.faster(kept, "another, machine", 2, pass_that_takes(many, one)) == 3 - found


def test_slow_passes_are_timed_once_each_and_no_longer():
    passes = []
    seconds = models.seconds_by_threads(2, lambda: (passes.append(1), sleep(0.6)))
    assert len(passes) == 4  # one to warm up, one to time, on one thread and on two
    assert set(seconds) == {1, 2}


def test_what_was_found_is_in_the_row_and_later_jobs_take_it(family, run_job, tmp_path):
    torch.set_num_threads(2)
    first = run_job(*PROBED)
    kept = next((tmp_path / "results" / "runs").glob("threads.json"))
    (key, found), *others = json.loads(kept.read_text()).items()
    assert others == []
    assert {result.facts.threads for result in first} == {found}
    kept.write_text(json.dumps({key: 3 - found}))
    torch.set_num_threads(2)
    again = run_job(*PROBED, "seed=7")
    assert {result.facts.threads for result in again} == {3 - found}


def test_a_number_that_is_asked_for_is_taken_without_timing(family, run_job, tmp_path):
    results = run_job("engine.threads=2", "cells=[]", "decoder=sd", "spec=2")
    assert {result.facts.threads for result in results} == {2}
    assert not (tmp_path / "results" / "runs" / "threads.json").exists()


def test_capturing_for_longer_than_decoding_is_said(family, run_job, monkeypatch, caplog):
    prepare = CachePool.prepare

    def slowly(pool, batch):
        sleep(2)
        prepare(pool, batch)

    monkeypatch.setattr(CachePool, "prepare", slowly)
    small = ("cells=[]", "prompts=1", "generation.max_new_tokens=2")
    with caplog.at_level(logging.WARNING):
        run_job(*small)
        assert "engine.compile=none" not in caplog.text  # nothing was captured
        run_job(*small, "engine.compile=static")
    assert "engine.compile=static took 2 s before the first prompt" in caplog.text
