"""The figure of a sweep: a group's long title stands once above the panels, not on the marks."""

import pytest

from spec_bench.report.figures.sweep import layout_of


@pytest.mark.parametrize(("longest", "within"), [(12, True), (70, False)])
def test_titles_that_a_panel_has_no_room_for_stand_above_all_panels(longest, within):
    drawing = layout_of(3, 4, longest)
    assert drawing["legend"] is within
    assert (drawing["rest"] > 0) is not within
