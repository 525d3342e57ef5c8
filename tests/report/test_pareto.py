"""The Pareto front: which points no other beats, for either direction of either axis."""

import pytest

from spec_bench.report.data.statistics import front

# Speed to the right, score upwards: 0 is slow and good, 3 fast and bad, 2 beaten by 1.
POINTS = [(1.0, 9.0), (3.0, 7.0), (2.0, 6.0), (5.0, 1.0)]


@pytest.mark.parametrize(
    ("higher_x", "higher_y", "expected"),
    [
        (True, True, [0, 1, 3]),
        (True, False, [3]),  # the fastest has the lowest y as well
        (False, True, [0]),
        (False, False, [0, 2, 3]),
    ],
)
def test_the_front_is_what_no_other_point_beats(higher_x, higher_y, expected):
    assert front(POINTS, higher_x=higher_x, higher_y=higher_y) == expected


def test_the_front_is_listed_along_x_whatever_the_order_given():
    found = front(POINTS[::-1], higher_x=True, higher_y=True)
    assert [POINTS[::-1][i][0] for i in found] == [1.0, 3.0, 5.0]


def test_of_equal_points_the_first_is_kept_and_ties_in_one_direction_are_beaten():
    assert front([(1.0, 1.0), (1.0, 1.0)], higher_x=True, higher_y=True) == [0]
    assert front([(1.0, 1.0), (1.0, 2.0)], higher_x=True, higher_y=True) == [1]
    assert front([(1.0, 2.0), (2.0, 2.0)], higher_x=True, higher_y=True) == [1]
    assert front([(1.0, 2.0), (2.0, 2.0)], higher_x=False, higher_y=True) == [0]


def test_a_point_alone_is_its_own_front_and_nothing_has_none():
    assert front([(0.5, 0.5)], higher_x=False, higher_y=False) == [0]
    assert front([], higher_x=True, higher_y=True) == []
