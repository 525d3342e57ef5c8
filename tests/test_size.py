"""The program that bounds the project's size counts what it says it counts."""

import pytest

from scripts.check.size import check_tokens, count_other_tokens, count_python_tokens


def test_layout_comments_and_docstrings_are_no_tokens():
    plain = "def area(side):\n    return side * side\n"
    spaced = (
        'def area(side):\n    """Squares.\n\n    Twice."""\n\n    # why\n    return side * side\n'
    )
    assert count_python_tokens(plain) == count_python_tokens(spaced) == 10


def test_a_text_that_is_no_docstring_is_one_token():
    assert count_python_tokens('name = """two\nlines"""\n') == 3


@pytest.mark.parametrize(
    ("suffix", "source", "tokens"),
    [
        (".yaml", "a: 1 # one\n", 3),
        (".js", "let a = 1; // one\n", 5),
        (".jinja", "{# one #}{{ a }}", 3),
    ],
)
def test_other_languages_are_counted_without_their_comments(suffix, source, tokens):
    assert count_other_tokens(source, suffix) == tokens


def test_a_bound_holds_from_above_and_follows_down():
    assert not check_tokens("tests", (5_000, 100), (5_500, 100))
    assert "5600" in check_tokens("tests", (5_600, 100), (5_500, 100))[0]
    assert "lower" in check_tokens("tests", (5_000, 100), (6_001, 100))[0]
