"""Curves over draft length and budget: one a temperature, seeds pooled, AR among them."""

from __future__ import annotations

from typing import Any

from spec_bench.sinks.curves import axes_of, curves


def row(decoder: str, spec: str, rate: float, **values: Any) -> dict[str, Any]:
    return {"decoder": decoder, "spec": spec, "temperature": 0.3, "token_rate": rate, **values}


def at(rows: list[dict[str, Any]], length: int) -> dict[str, float]:
    lines = [line for line in curves(rows) if line.get("draft_length") == length]
    (line,) = lines
    return {name.removeprefix("draft_length/token_rate/"): value for name, value in line.items()}


def test_temperatures_are_curves_of_their_own_and_no_maximum_is_taken_over_them() -> None:
    found = at([row("sd", "2", 40.0), row("sd", "2", 90.0, temperature=1.0)], 2)
    assert found == {"draft_length": 2.0, "sd/T0.3": 40.0, "sd/T1": 90.0}


def test_seeds_are_one_curve_of_their_mean_and_the_best_tree_is_the_best_mean() -> None:
    lucky = [row("rsd_s", "2x2", rate, seed=seed) for seed, rate in enumerate((90.0, 10.0))]
    steady = [row("rsd_s", "3x2", rate, seed=seed) for seed, rate in enumerate((60.0, 64.0))]
    assert at([*lucky, *steady], 2)["rsd_s/T0.3"] == 62.0


def test_other_settings_that_tell_runs_apart_are_named_where_they_differ() -> None:
    rows = [row("sd", "2", 40.0, batch_size="1"), row("sd", "2", 90.0, batch_size="4")]
    assert set(at(rows, 2)) == {"draft_length", "sd/T0.3, batch_size 1", "sd/T0.3, batch_size 4"}
    assert set(at(rows[:1], 2)) == {"draft_length", "sd/T0.3"}


def test_autoregressive_decoding_is_on_every_place_of_its_temperature() -> None:
    rows = [row("ar", "-", 50.0), row("sd", "2", 40.0), row("sd", "3", 30.0)]
    assert [at(rows, length)["ar/T0.3"] for length in (2, 3)] == [50.0, 50.0]
    assert curves(rows[:1]) == []


def test_failed_cells_have_no_numbers_and_no_place() -> None:
    assert curves([{"decoder": "sd", "spec": "2", "temperature": "", "token_rate": ""}]) == []


def test_of_energy_the_least_is_the_best() -> None:
    rows = [row("sd", "2", 40.0, energy_j_per_token=joules) for joules in (3.0,)]
    rows += [
        row("rsd_s", tree, 40.0, energy_j_per_token=j) for tree, j in (("2x2", 2.0), ("3x2", 5.0))
    ]
    (line,) = (each for each in curves(rows) if each.get("draft_length") == 2)
    assert line["draft_length/energy_j_per_token/rsd_s/T0.3"] == 2.0


def test_a_bare_number_is_a_chain_candidates_or_beams_as_the_decoder_has_it() -> None:
    assert axes_of("8", "sd") == (8, 8)
    assert axes_of("8", "mcsd_wor") == (1, 8)
    assert axes_of("8", "beam_sampling") is None
    assert axes_of("4x3@0.9", "dsbd") == (3, 12)
    assert axes_of("mc_sim_7b_63", "medusa") is None
    assert axes_of("-", "ar") is None
