"""What the judge is shown, and how its rating is read."""

from __future__ import annotations

import pytest

from spec_bench.judge.conversation import Conversation
from spec_bench.judge.grade import rating_of
from spec_bench.judge.prompts import judge_messages

OWN = Conversation("1", "writing", ("Q1", "Q2"), ("A1", "A2"), references=("G1", "G2"))
FIXED = Conversation("1", "math", ("Q1", "Q2"), ("A1", "A2"), ("F1",), ("G1", "G2"))


def shown(conversation: Conversation, turn: int) -> str:
    return judge_messages(conversation, turn)[1]["content"]


def test_the_first_turn_shows_question_and_answer_only() -> None:
    assert shown(OWN, 0) == (
        "[Start of Question]\nQ1\n[End of Question]\n\n"
        "[Start of Assistant's answer]\nA1\n[End of Assistant's answer]"
    )


def test_a_later_turn_shows_the_conversation_that_the_decoder_saw() -> None:
    assert "A1" in shown(OWN, 1)
    assert "A1" not in shown(FIXED, 1)
    text = shown(FIXED, 1)
    assert text.index("G2") < text.index("F1") < text.index("A2")
    assert text.count("Q2") == 2


def test_references_are_shown_in_the_categories_that_need_them() -> None:
    assert "G1" in shown(FIXED, 0)
    assert "G1" not in shown(OWN, 0)
    assert "reference" in judge_messages(FIXED, 0)[0]["content"]
    assert "reference" not in judge_messages(OWN, 0)[0]["content"]


def test_the_judge_is_told_the_format_of_its_rating() -> None:
    assert all("[[5]]" in judge_messages(OWN, turn)[0]["content"] for turn in (0, 1))


@pytest.mark.parametrize(
    ("reply", "rating"),
    [
        ("Fine. Rating: [[8]]", 8.0),
        ("[[7.5]] or [[2]]", 7.5),
        ("Rating: [6]", 6.0),
        ("Rating: 6", None),
        ("[[11]]", None),
        ("[[0]]", None),
        ("[[rating]]", None),
        ("", None),
    ],
)
def test_a_rating_is_a_number_in_brackets_from_one_to_ten(reply: str, rating: float | None) -> None:
    assert rating_of(reply) == rating
