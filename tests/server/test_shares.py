"""Whose seconds: equal parts of every instant, waiting apart from decoding."""

import pytest

from spec_bench.server.decoder import Span, shares


def test_a_request_alone_has_its_own_seconds():
    assert shares([Span(1.0, 1.5, 4.0)]) == [(0.5, 2.5)]


def test_two_that_overlap_halve_what_they_share():
    # 0..1 the first waits alone, 1..2 it decodes while the second waits, 2..3 both decode.
    assert shares([Span(0.0, 1.0, 3.0), Span(1.0, 2.0, 4.0)]) == [(1.0, 1.0), (0.5, 1.5)]


def test_shares_add_up_to_the_time_in_which_anything_was_under_way():
    spans = [Span(0.0, 0.4, 2.0), Span(0.1, 1.7, 1.9), Span(5.0, 5.0, 5.5), Span(0.3, 0.3, 0.3)]
    assert sum(map(sum, shares(spans))) == pytest.approx(2.5)
    assert shares(spans)[3] == (0.0, 0.0)


def test_none_has_no_shares():
    assert shares([]) == []
