"""Quality scores against values worked out by hand or by the reference implementation."""

import pytest
import sacrebleu

from spec_bench.metrics.quality import SCORES, normalise
from tests.said import naming

SENTENCES = [
    "the cat sat on the mat today",
    "a dog ran over the green hill",
    "nobody knows where the key is",
]
OTHERS = [
    "the cat sat on a mat today",
    "a dog walked over the green hill",
    "nobody knows where my keys are",
]


def score(name, predictions, references):
    return SCORES[name]().score(predictions, references)


@pytest.mark.parametrize("name", sorted(set(SCORES) - {"execution_accuracy", "pass_at_1"}))
def test_perfect_answers_score_one_and_are_not_sure_to_stay_so(name):
    found = score(name, SENTENCES * 2, [[text] for text in SENTENCES] * 2)
    # Clopper and Pearson's of 6 in 6.
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 0.025 ** (1 / 6), 1.0))


@pytest.mark.parametrize("name", ["bleu", "rouge2", "exact_match"])
def test_an_unrelated_answer_scores_zero(name):
    assert score(name, ["x y z w"] * 3, [[text] for text in SENTENCES]).value == 0.0


def test_bleu_is_sacrebleus_corpus_bleu_over_100():
    expected = sacrebleu.corpus_bleu(OTHERS, [SENTENCES]).score / 100
    assert score("bleu", OTHERS, [[text] for text in SENTENCES]).value == pytest.approx(expected)


def test_bleu_takes_several_references():
    golds = [[a, b] for a, b in zip(SENTENCES, OTHERS, strict=True)]
    assert score("bleu", OTHERS, golds).value == pytest.approx(1.0)


def test_bleu_interval_encloses_the_value():
    found = score("bleu", OTHERS * 2, [[text] for text in SENTENCES] * 2)
    assert 0 < found.low < found.value < found.high < 1


def test_bleu_signature_names_version_and_settings():
    signature = SCORES["bleu"]().signature([["a"], ["b"]])
    assert signature.startswith("sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_empty_predictions_score_zero():
    assert score("bleu", ["", ""], [["a b"], ["c d"]]).value == 0.0
    assert score("rouge2", ["", ""], [["a b"], ["c d"]]).value == 0.0


def test_rouge2_is_f1_of_bigrams():
    # 4 of the prediction's 5 bigrams are among the reference's 5... of 'a b c d e f'.
    assert score("rouge2", ["a b c d e x"], [["a b c d e f"]]).value == pytest.approx(0.8)


def test_rouge2_takes_the_best_reference():
    assert score("rouge2", ["a b c"], [["x y z", "a b c"]]).value == 1.0


def test_exact_match_ignores_case_articles_and_punctuation():
    assert normalise("The  Eiffel Tower!") == "eiffel tower"
    assert score("exact_match", ["the Eiffel tower."], [["Eiffel Tower"]]).value == 1.0


@pytest.mark.parametrize("answer", ["unanswerable", "Unanswerable.", "", " "])
def test_an_unanswerable_question_wants_unanswerable_or_nothing(answer):
    assert score("exact_match", [answer], [[]]).value == 1.0
    assert score("f1", [answer], [[]]).value == 1.0


def test_an_unanswerable_question_refuses_a_guess():
    assert score("exact_match", ["Paris"], [[]]).value == 0.0
    assert score("f1", ["Paris"], [[]]).value == 0.0


def test_giving_up_on_an_answerable_question_scores_zero():
    assert score("exact_match", ["unanswerable"], [["Paris"]]).value == 0.0
    assert score("f1", ["unanswerable"], [["Paris"]]).value == 0.0


# The rules of SQuAD 2.0's evaluate-v2.0.py, worked out by hand.
SQUAD = [
    # prediction, gold answers, exact match, F1
    ("Denver Broncos", ["Denver Broncos", "The Denver Broncos"], 1.0, 1.0),
    ("the Broncos", ["Denver Broncos", "Broncos of Denver"], 0.0, 2 / 3),
    ("Broncos from Denver", ["Denver", "Denver Broncos", "Panthers"], 0.0, 0.8),
    ("U.S.", ["US"], 1.0, 1.0),
    ("1,000", ["1000"], 1.0, 1.0),
    ("rock-and-roll", ["rock and roll"], 0.0, 0.0),
    ("to be or not to be", ["to be"], 0.0, 0.5),
    ("be be be", ["to be be"], 0.0, 2 / 3),
    ("Theatre", ["The Theatre"], 1.0, 1.0),
    ("Été", ["été"], 1.0, 1.0),
    # A gold answer of which nothing is left does not count...
    ("", ["a", "Denver"], 0.0, 0.0),
    ("Denver", ["the", "Denver"], 1.0, 1.0),
    # ...and a question left without one is unanswerable.
    ("", ["the"], 1.0, 1.0),
    ("unanswerable", ["?"], 1.0, 1.0),
    ("a the .", [], 1.0, 1.0),
    ("Denver", [], 0.0, 0.0),
    ("", ["Denver"], 0.0, 0.0),
    # Where there is an answer the word is one like any other.
    ("unanswerable", ["Unanswerable"], 1.0, 1.0),
    ("unanswerable", ["unanswerable questions"], 0.0, 2 / 3),
    ("unanswerable because", [], 0.0, 0.0),
]


@pytest.mark.parametrize(("prediction", "golds", "exact", "overlap"), SQUAD)
def test_answers_score_by_the_rules_of_squad_2(prediction, golds, exact, overlap):
    assert score("exact_match", [prediction], [golds]).value == exact
    assert score("f1", [prediction], [golds]).value == pytest.approx(overlap)


def test_squad_scores_are_means_over_prompts_with_and_without_an_answer():
    predictions, golds = ["Paris", "unanswerable", "Rome"], [["Paris"], [], ["old Rome"]]
    assert score("exact_match", predictions, golds).value == pytest.approx(2 / 3)
    assert score("f1", predictions, golds).value == pytest.approx((1 + 1 + 2 / 3) / 3)


def test_f1_is_the_overlap_of_words():
    # 2 words in common; precision 2/3, recall 2/2.
    assert score("f1", ["in old Paris"], [["old Paris"]]).value == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["bleu", "rouge2"])
def test_a_handful_of_prompts_has_no_interval(name):
    assert score(name, ["a b"], [["a b"]]).low is None
    assert score(name, SENTENCES, [[text] for text in OTHERS]).low is None


@pytest.mark.parametrize("name", ["bleu", "rouge2"])
def test_a_prompt_without_reference_is_refused_where_one_is_needed(name):
    with pytest.raises(ValueError, match=naming("prompt 1")):
        score(name, ["a", "b"], [["a"], []])


def test_a_string_in_place_of_a_list_of_references_is_refused():
    with pytest.raises(ValueError, match="must be a list"):
        score("bleu", ["a"], ["a"])


def test_unequal_numbers_of_predictions_and_references_are_refused():
    with pytest.raises(ValueError, match=naming("2 predictions", "1 prompts")):
        score("exact_match", ["a", "b"], [["a"]])
