"""The tiny family, made once, and jobs on it in this process."""

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.jobs.app import run_config
from spec_bench.jobs.config.compose import compose_config
from tests.jobs.tiny import make_family, make_task, overrides


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    make_family(folder)
    make_task(folder)
    return folder


@pytest.fixture
def run_job(family, tmp_path):
    """Runs a job with these overrides; results go to ``tmp_path / "results"`` unless said."""

    def run(*more, results=None):
        given = overrides(family, results or tmp_path / "results", *more)
        return run_config(compose_config(given))

    return run


@pytest.fixture
def calls(monkeypatch):
    """Each call of a decoder so far: its name and the prompts."""
    calls, generate = [], Decoder.generate

    def noting(self, requests, *arguments):
        calls.append((self.name, [request.prompt_id for request in requests]))
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", noting)
    return calls
