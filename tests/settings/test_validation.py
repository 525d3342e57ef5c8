"""One validator: plain dataclasses are held to their annotations as settings classes are."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from annotated_types import MinLen

from spec_bench.settings.fields import Count, Share
from spec_bench.settings.validation import read_settings


@dataclass(frozen=True)
class Bush:
    widths: Annotated[tuple[Count, ...], MinLen(1)]
    share: Share | None = 0.5
    is_tall: bool = False

    def __post_init__(self):
        if len(self.widths) > 3:
            raise ValueError("widths has four levels")


def test_a_plain_dataclass_is_read_with_lists_as_tuples_and_whole_numbers_as_floats():
    bush = read_settings(Bush, {"widths": [2, 1], "share": 1}, "tree")
    assert bush == Bush((2, 1), 1.0) and type(bush) is Bush and type(bush.share) is float


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"widths": [2, True]}, "tree.widths[1] must be a whole number from 1 to 4096, got True"),
        ({"widths": [1.0]}, "tree.widths[0] must be a whole number from 1 to 4096, got 1.0"),
        ({"widths": []}, "tree.widths must be a list, each a whole number from 1 to 4096, got []"),
        ({"widths": [1], "share": "1"}, "tree.share must be a number from 0 to 1 or null, got '1'"),
        ({"widths": [1], "is_tall": 1}, "tree.is_tall must be true or false, got 1"),
        ({"share": 1.0}, "tree.widths is missing: policy 'bush' needs a list, each a whole number"),
        ({"width": [1]}, "unknown setting tree.width; did you mean tree.widths? policy 'bush' has"),
        ({"widths": [1] * 4}, "tree.widths has four levels"),
    ],
)
def test_what_a_plain_dataclass_does_not_take_is_one_line_with_key_value_and_choices(given, said):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_settings(Bush, given, "tree", owner="policy 'bush'")
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
