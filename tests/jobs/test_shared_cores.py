"""Jobs that are timed on the same cores are warned of."""

from types import SimpleNamespace

import pytest

from spec_bench.jobs.sweep import launch


@pytest.mark.parametrize(("jobs", "said"), [(2, "2 jobs"), (-1, "as many jobs"), (1, None)])
def test_jobs_that_run_at_the_same_time_are_said_to_disturb_each_other(monkeypatch, jobs, said):
    config = SimpleNamespace(launcher=SimpleNamespace(n_jobs=jobs), mode="MULTIRUN")
    monkeypatch.setattr(launch, "HydraConfig", SimpleNamespace(get=lambda: config))
    why = launch.disturbing()
    assert (why is None) == (said is None)
    if said is not None:
        assert why and why.startswith(said) and "hydra.launcher.n_jobs=1" in why
