"""The program that bounds odd names refuses new ones, and lets good ones pass."""

from collections import Counter

import pytest

from scripts.check.names import check_counts, find_odd_names


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [
        ("def written(text): ...", "function", "written"),
        ("def below(tree): ...", "function", "below"),
        ("def heads_of(pair): ...", "function", "heads_of"),
        ("class Kept: ...", "class", "Kept"),
        ("class Steps: ...", "class", "Steps"),
        ("those = 1", "variable", "those"),
        ("def load(told): ...", "variable", "told"),
        ("def load():\n    data = 1\n\n\n\n    return data", "variable", "data"),
    ],
)
def test_an_odd_name_is_found(source, kind, name):
    assert [found[:2] for found in find_odd_names(source)] == [(kind, name)]


@pytest.mark.parametrize(
    "source",
    [
        "class IterationGraph:\n    def __init__(self, seed): ...",
        "def load_heads(path):\n    data = path.read()\n    return data",
        "__all__ = []\ndef from_spec(spec): ...\ndef embed(tokens): ...\nclass Loss: ...",
    ],
)
def test_a_name_that_says_what_it_names_passes(source):
    assert not find_odd_names(source)


def test_a_new_odd_name_breaks_the_bound_and_a_bound_follows_down():
    most = {"function": 20}
    assert not check_counts(Counter(function=20), most)
    assert "21 odd names" in check_counts(Counter(function=21), most)[0]
    assert "lower" in check_counts(Counter(function=9), most)[0]
