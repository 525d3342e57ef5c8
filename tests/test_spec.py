"""The tree shorthand: read by syntax, written back."""

import pytest

from spec_bench.vocabulary.spec import Spec, parse


@pytest.mark.parametrize(
    ("text", "form", "numbers", "depth", "width", "nodes"),
    [
        ("-", "root", (), 0, 0, 0),
        ("3", "number", (3,), 3, 3, 3),
        ("2-2-1", "levels", (2, 2, 1), 3, 2, 10),
        ("1-4", "levels", (1, 4), 2, 4, 5),
        ("4x3", "product", (4, 3), 3, 4, 12),
        ("4x2@0.9", "threshold", (4, 2), 2, 4, 8),
    ],
)
def test_a_shorthand_says_its_form_and_its_size(text, form, numbers, depth, width, nodes):
    spec = parse(text)
    assert (spec.form, spec.numbers) == (form, numbers)
    assert (spec.depth, spec.width, spec.nodes) == (depth, width, nodes)
    assert str(spec) == text


def test_only_numbers_by_level_can_be_read_as_children_per_level():
    found = {text: parse(text).widths for text in ("-", "7", "2-2-1", "4x3", "4x2@0.9", "sparse")}
    assert found == {
        **{"-": (), "7": (7,), "2-2-1": (2, 2, 1)},
        **{"4x3": None, "4x2@0.9": None, "sparse": None},
    }


@pytest.mark.parametrize("text", ["mc_sim_7b_63", "3 nodes", "4x", "-3", "2--1", "٣", "1" * 5000])
def test_what_is_no_number_is_a_name_without_a_size(text):
    spec = parse(text)
    assert (spec.form, str(spec)) == ("name", text)
    for size in ("depth", "width", "nodes"):
        with pytest.raises(ValueError, match=size):
            getattr(spec, size)


def test_thresholds_are_written_one_way():
    assert str(parse(" 4x2@.90 ")) == "4x2@0.9"
    assert parse("4x2@.9") == Spec("threshold", (4, 2), 0.9)
    assert str(parse(7)) == "7"


def test_an_empty_shorthand_is_refused():
    with pytest.raises(ValueError, match="empty"):
        parse("  ")
