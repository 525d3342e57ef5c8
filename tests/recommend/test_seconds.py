"""Which decoders are timed, and what the others should take."""

from __future__ import annotations

import pytest

from spec_bench.metrics.interval import Interval
from spec_bench.recommend import timing
from spec_bench.recommend.seconds import PROBES, Size, fitted, probes
from spec_bench.recommend.timing import FEWEST, ROUNDS, Stopwatch, faster, faster_by_line, race

SIZES = [Size(levels, nodes) for levels in range(1, 6) for nodes in (levels, 4 * levels)]


def test_seconds_that_lie_on_a_line_are_its_own() -> None:
    line = fitted(SIZES, [0.01 + 0.002 * levels + 0.0005 * nodes for levels, nodes in SIZES])
    assert (line.fixed_s, line.level_s, line.node_s) == pytest.approx((0.01, 0.002, 0.0005))
    assert line.of(Size(3, 30)) == pytest.approx(0.031)
    assert line.factor == pytest.approx(1.0)


def test_no_part_of_an_iteration_takes_less_than_no_time() -> None:
    falling = fitted(SIZES, [0.02 - 0.002 * levels for levels, _ in SIZES])
    assert falling.level_s == falling.node_s == 0 and falling.fixed_s > 0
    assert falling.factor > 1.1


def test_both_ends_and_the_widest_are_probed() -> None:
    many = [Size(levels, levels + (30 if levels == 4 else 0)) for levels in range(1, 30)]
    chosen = probes(many)
    assert {0, 3, 28} <= set(chosen) and len(chosen) <= PROBES + 1
    assert probes(many[:3]) == [0, 1, 2]
    assert probes([]) == []


def test_who_falls_behind_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def timed(decoder: str, *_: object) -> list[float]:
        asked.append(decoder)
        return [1.0 if decoder == "plain" else 2.0]

    monkeypatch.setattr(timing, "_timed", timed)
    watch = Stopwatch([None, None], 0)  # type: ignore[list-item]
    decoders = {0: "plain", **{place: f"d{place}" for place in range(1, 21)}}
    race(watch, decoders, {place: float(place) for place in range(1, 21)})
    assert asked.count("plain") == asked.count("d20") == ROUNDS
    assert asked.count("d1") == 1 and asked.count("d11") == 2
    assert {name for name in asked if asked.count(name) == ROUNDS} == {
        "plain",
        *(f"d{place}" for place in range(20, 20 - FEWEST, -1)),
    }


def test_a_speed_up_by_size_alone_is_as_vague_as_the_line() -> None:
    line = fitted(SIZES, [0.02 * (1.1 if nodes % 2 else 0.9) for _, nodes in SIZES])
    tokens = Interval(3.0, 2.9, 3.1)
    by_line = faster_by_line(tokens, [0.01, 0.01], line, Size(3, 3))
    own = faster(tokens, [0.01, 0.01], [line.of(Size(3, 3))] * 3)
    assert by_line.value == pytest.approx(own.value)
    assert by_line.high is not None and own.high is not None and by_line.high > 1.1 * own.high
