"""The DSBD authors' protocol: one sum over all of a cell, a sample a second, all GPUs added up."""

import pytest

from tests.jobs.tiny import rows_of
from tests.measure.conftest import opened, window
from tests.measure.made_up import Decoder, decode, machine, metered
from tests.measure.stand_ins import Curve

STEADY = Curve("steady", low_w=250.0)


def joules(generations):
    return sum(each.energy_j for each in generations)


@pytest.mark.parametrize(
    ("window_s", "windows"), [(0.3, 40), (0.9, 10), (1.0, 10), (2.5, 7), (10.0, 3), (60.0, 1)]
)
def test_a_cells_sum_has_a_sample_for_each_of_its_seconds_however_short_its_windows(
    window_s, windows
):
    with machine(STEADY) as clock, metered("paper") as metering:
        decoder = Decoder(clock, 0.0, window_s)
        found = joules(decode(metering, decoder, windows))
    assert decoder.true_j - 251 <= found <= decoder.true_j + 1
    assert found % 250 == 0


def test_a_ramp_is_summed_as_far_as_a_sample_a_second_tells():
    with machine(Curve("ramp", slope_w_per_s=2.0)) as clock, metered("paper") as metering:
        decoder = Decoder(clock, 0.0, 0.7)
        found = joules(decode(metering, decoder, 100))
    assert found == pytest.approx(decoder.true_j, rel=0.01)


def test_the_prefill_and_every_gpu_that_nvidia_smi_lists_are_in_and_the_note_says_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    curves = [Curve("steady", low_w=watts) for watts in (10.0, 200.0, 3000.0)]
    with machine(*curves) as clock:
        with metered("paper") as metering:
            (one,) = decode(metering, Decoder(clock, 2.0, 1.5), 1)
        with metered("paper", devices=[1]) as metering:
            (named,) = decode(metering, Decoder(clock, 2.0, 1.5), 1)
    assert (one.energy_j, named.energy_j) == (3 * 3210.0, 3 * 200.0)
    assert "prefill in" in one.energy_note and one.energy_note.endswith("GPUs: 3")


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_cell_decoded_in_two_sessions_has_the_sum_of_one(first):
    with machine(STEADY) as clock:
        done = []
        for windows in (first, 4 - first):
            with metered("paper") as metering:
                done = decode(metering, Decoder(clock, 0.1, 0.55), windows, done)
    assert joules(done) == 2 * 250  # of 2.6 s


def test_a_program_whose_power_rises_is_read_at_the_cells_own_seconds(play_power):
    (curve,) = play_power(Curve("ramp"))
    with opened("paper", period_s=0.1) as meter:
        reading, begin_s, end_s = window(meter, 0.95)
    assert reading.energy_j == pytest.approx(curve.energy_j(begin_s, end_s), rel=0.15)
    assert meter.period_s == 0.1 and "shorter" not in reading.note


def test_a_rows_joules_are_those_of_prefill_and_decoding(run_job, play_power, tmp_path):
    play_power(Curve("steady", low_w=500.0))
    run_job("cells=[sd:2]", "energy=paper", "energy.idle_s=0", "energy.period_s=0.005", "prompts=2")
    for row in rows_of(tmp_path / "results"):
        seconds = float(row["prefill_s"]) + float(row["decode_s"])
        metered_s = float(row["energy_j_per_token"]) * float(row["delivered_tokens"]) / 500.0
        assert 0.9 * seconds - 0.005 < metered_s < 2 * seconds
        assert row["energy_method"] == "paper" and "GPUs: 1" in row["reason"]


def test_a_cell_below_a_sample_has_no_number_but_a_reason(run_job, play_power, tmp_path):
    play_power(Curve("steady", low_w=500.0))
    run_job("cells=[sd:2]", "energy=paper", "energy.idle_s=0", "energy.period_s=10", "prompts=1")
    for row in rows_of(tmp_path / "results"):
        assert row["energy_j_per_token"] == row["energy_j_per_token_low"] == ""
        assert "energy_j_per_token: all windows together are shorter" in row["reason"]
        assert row["acceptance_rate_by_depth"] or row["decoder"] == "ar"
