"""What all tests share."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from absl import logging as absl_logging

if "SPEC_BENCH_CACHE" not in os.environ:  # nobody's own is read or written
    os.environ["SPEC_BENCH_CACHE"] = tempfile.mkdtemp(prefix="spec_bench_cache_")
    atexit.register(shutil.rmtree, os.environ["SPEC_BENCH_CACHE"], ignore_errors=True)

from spec_bench.measure import monitors
from tests import warm

SLOW = Path(__file__).with_name("slow.yaml")
SKIPS = Path(__file__).with_name("skips.yaml")


CORE_WAITS = monitors.read_thread_waits_s


def pytest_configure():
    gc.set_threshold(100_000, 50)  # a tenth of the tests' time, for garbage that there is little of
    # Tests run beside others: what their jobs say must not hang on how busy the machine is.
    monitors.read_thread_waits_s = dict
    # Hydra closes every log handler that there is, and absl's closes the stream that was standard
    # error when it was imported, unless that is the interpreter's own: pytest's would be gone.
    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_collection_finish():
    gc.freeze()  # what was imported lives as long as the process


def pytest_sessionfinish(session):
    """Ends what was kept warm; in CI, fails for a skip that ``skips.yaml`` does not list."""
    warm.stop()
    report = session.config.pluginmanager.get_plugin("terminalreporter")
    if report is None or not os.environ.get("CI"):
        return
    skipped = {each.nodeid.split("[")[0] for each in report.stats.get("skipped", [])}
    if new := sorted(skipped - set(yaml.safe_load(SKIPS.read_text()))):
        print(f"\n{SKIPS.name} does not list these skipped tests: {', '.join(new)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks what ``slow.yaml`` lists; of a whole collection, refuses lines that name no test."""
    listed = {
        f"{file}::{name}"
        for file, names in yaml.safe_load(SLOW.read_text()).items()
        for name in names
    }
    matched = set()
    for item in items:
        if names := listed & {item.nodeid, item.nodeid.split("[")[0]}:
            item.add_marker(pytest.mark.slow)
            matched |= names
    if config.args == config.getini("testpaths") and (stale := sorted(listed - matched)):
        raise pytest.UsageError(f"{SLOW.name}: no such test: {', '.join(stale)}")


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    """The folder of the tiny family, made once."""
    from tests.jobs.tiny import make_family, make_task  # with torch

    folder = tmp_path_factory.mktemp("family")
    make_family(folder)
    make_task(folder)
    return folder


@pytest.fixture
def run_job(family, tmp_path):
    """Runs a job with these overrides; results go to ``tmp_path / "results"`` unless said."""
    from spec_bench.jobs.app import run_config  # with torch
    from spec_bench.jobs.config.compose import compose_config
    from tests.jobs.tiny import overrides

    def run(*more, results=None):
        given = overrides(family, results or tmp_path / "results", *more)
        return run_config(compose_config(given))

    return run
