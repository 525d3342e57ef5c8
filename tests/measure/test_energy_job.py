"""Energy in a job: from the decode window of a batch to the columns of its row."""

import logging
import time

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work.metering import Metering, shared
from spec_bench.measure.energy import EnergyReading
from spec_bench.records.types import Generation
from tests.jobs.conftest import family, run_job
from tests.jobs.tiny import rows_of
from tests.measure.conftest import kill_meter
from tests.measure.stand_ins import Curve
from tests.said import naming

__all__ = ["family", "run_job"]
QUICK = ("energy=nvidia_smi", "energy.idle_s=0.3", "energy.period_s=0.01", "prompts=2")


def test_a_steady_power_is_that_power_times_the_decode_window(
    run_job, play_power, tmp_path, monkeypatch
):
    join = Decoder.join

    def slowly(*arguments, **named):
        time.sleep(0.5)
        return join(*arguments, **named)

    monkeypatch.setattr(Decoder, "join", slowly)
    play_power(Curve("steady", low_w=500.0))
    run_job("cells=[sd:2]", *QUICK, "energy.update_period_s=60")
    for row in rows_of(tmp_path / "results"):
        decode_s, prefill_s = float(row["decode_s"]), float(row["prefill_s"])
        assert prefill_s > 0.9
        window_s = float(row["energy_j_per_token"]) * float(row["delivered_tokens"]) / 500.0
        # Not the prefill's seconds; some of a busy machine's between two clocks.
        assert 0.95 * decode_s < window_s < decode_s + prefill_s / 2
        assert row["energy_j_per_token_low"] == row["energy_j_per_token_high"] == ""  # two prompts
        assert row["energy_method"] == "nvidia_smi"
        assert float(row["energy_period_s"]) == 0.01
        assert float(row["idle_power_w"]) == pytest.approx(500.0, rel=0.01)
        assert "shorter than the meter's update period of 60 s" in row["reason"]


def test_a_meter_that_dies_leaves_an_empty_cell_with_its_reason(
    run_job, play_power, tmp_path, monkeypatch
):
    end = tmp_path / "end"
    play_power(Curve("steady"), dies_of=str(end))
    alive, begin = [end], Metering.begin

    def dying(metering):
        """At the first window of the job."""
        if alive:
            kill_meter(alive.pop())
        begin(metering)

    monkeypatch.setattr(Metering, "begin", dying)
    results = run_job("cells=[]", "spec=2x2", *QUICK)
    assert [result.status for result in results] == ["complete", "complete"]
    for row in rows_of(tmp_path / "results"):
        assert row["energy_j_per_token"] == ""
        assert "energy_j_per_token: nvidia-smi ended with status 3" in row["reason"]
        assert float(row["token_rate"]) > 0


def test_without_the_program_the_column_is_empty_and_one_line_says_why(
    run_job, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="spec_bench"):
        run_job("cells=[sd:2]", "energy=paper", "prompts=2")
    lines = [record.message for record in caplog.records if "energy" in record.message]
    assert lines == ["no energy is measured: no nvidia-smi on PATH"]
    for row in rows_of(tmp_path / "results"):
        assert row["energy_j_per_token"] == row["idle_power_w"] == ""
        assert row["reason"].endswith("; energy_j_per_token: no nvidia-smi on PATH")


def test_without_a_meter_nothing_is_handed_to_the_decoder(run_job, monkeypatch, tmp_path):
    monkeypatch.setattr(Metering, "begin", lambda *_: 1 / 0)
    (result, _) = run_job("cells=[sd:2]", "prompts=1")
    stored = CellStore(tmp_path / "results", result.run_id).load()
    assert [(g.energy_j, g.energy_note) for g in stored.values()] == [(None, "")]
    assert result.metrics["energy_method"] is None
    assert "energy_j_per_token: no meter" in result.reason


def test_rows_of_a_batch_share_its_energy_equally():
    rows = [Generation(name, (1,), "stop", (), 0.0, 1.0, 0.0, 0.0) for name in "ab"]
    both = shared(rows, EnergyReading(6.0, "short"))
    assert [(g.energy_j, g.energy_note) for g in both] == [(3, "short")] * 2
    none = shared(rows, EnergyReading(None, "no nvidia-smi on PATH"))
    assert [(g.energy_j, g.energy_note) for g in none] == [(None, "no nvidia-smi on PATH")] * 2


def test_a_wrong_setting_is_refused_before_any_model_loads(run_job):
    with pytest.raises(ValueError, match=naming("energy.idle_s", "-1")):
        run_job("energy=nvml", "energy.idle_s=-1", "pair.target=/no/such/model")
