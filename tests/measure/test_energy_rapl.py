"""The processor's counters, in a folder that a test makes."""

import pytest

from spec_bench.measure.energy import build_meter


def zone(root, folder, name, energy_uj, range_uj=10**9):
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path / "energy_uj"


def opened(root, **settings):
    meter = build_meter({"meter": "rapl", "root": str(root), "idle_s": 0, **settings})
    meter.open()
    return meter


def test_packages_and_memory_are_added_up_and_their_parts_are_not(tmp_path):
    counters = [
        zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000),
        zone(tmp_path, "intel-rapl:0:0", "core", 1_000_000),
        zone(tmp_path, "intel-rapl:0:1", "dram", 1_000_000),
        zone(tmp_path, "intel-rapl:1", "package-1", 1_000_000),
        zone(tmp_path, "intel-rapl:2", "psys", 1_000_000),
        zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000),
    ]
    meter = opened(tmp_path)
    meter.begin()
    for joules, counter in enumerate(counters, start=1):
        counter.write_text(str(1_000_000 + joules * 1_000_000))
    reading = meter.end()
    assert reading.energy_j == pytest.approx(1 + 3 + 4)
    assert (meter.period_s, reading.note) == (0.001, "")


def test_a_counter_that_wrapped_around_counts_on(tmp_path):
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 9_500_000, range_uj=9_999_999)
    meter = opened(tmp_path)
    meter.begin()
    counter.write_text("2500000")
    assert meter.end().energy_j == pytest.approx(3.0)


def test_idle_power_is_measured_before_the_run(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = opened(tmp_path, idle_s=0.05)
    assert meter.idle_power_w == 0.0


def test_without_the_interface_there_is_a_reason(tmp_path):
    meter = opened(tmp_path)
    meter.begin()
    reading = meter.end()
    assert reading.energy_j is None
    assert reading.note == meter.reason == f"no intel-rapl package in {tmp_path}"


def test_a_counter_that_cannot_be_read_is_a_reason(tmp_path):
    # Root may read a file of mode 000, so the file is a folder instead.
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    counter.unlink()
    counter.mkdir()
    meter = opened(tmp_path)
    meter.begin()
    assert meter.end().note == f"cannot read {counter}: Is a directory"


def test_a_counter_that_fails_in_a_window_gives_no_number_for_it(tmp_path):
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = opened(tmp_path)
    meter.begin()
    counter.write_text("broken")
    reading = meter.end()
    assert reading.energy_j is None
    assert "holds no number" in reading.note
    counter.write_text("0")
    meter.begin()
    counter.write_text("1000000")
    assert meter.end().energy_j == 1.0
