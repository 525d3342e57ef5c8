"""Quality scores against values worked out by hand or by the reference implementation."""

import math
import shutil
from pathlib import Path

import evaluate
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from spec_bench.metrics import module_metric, needs_references
from spec_bench.metrics.quality import (
    SCORES,
    check_references,
    compute_score_columns,
    normalise_squad_answer,
    refuse_shared_columns,
    score_each_answer,
)
from tests.said import naming, one_line

KEY = "nobody knows where the key is"
SENTENCES = ["the cat sat on the mat today", "a dog ran over the green hill", KEY]
KEYS = "nobody knows where my keys are"
OTHERS = ["the cat sat on a mat today", "a dog walked over the green hill", KEYS]
EACH = [[text] for text in SENTENCES]
BOTH = [[a, b] for a, b in zip(SENTENCES, OTHERS, strict=True)]


def score(name, predictions, references):
    return SCORES[name]().columns(predictions, references)[name]


@pytest.mark.parametrize("name", sorted(set(SCORES) - {"execution_accuracy", "pass_at_1"}))
def test_perfect_answers_score_one_and_are_not_sure_to_stay_so(name):
    found = score(name, SENTENCES * 2, EACH * 2)
    # Clopper and Pearson's of 6 in 6.
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 0.025 ** (1 / 6), 1.0))


def test_bleu_is_sacrebleus_corpus_bleu_over_100_within_its_interval():
    expected = sacrebleu.corpus_bleu(OTHERS, [SENTENCES]).score / 100
    found = score("bleu", OTHERS * 2, EACH * 2)
    assert score("bleu", OTHERS, EACH).value == pytest.approx(expected)
    assert 0 < found.low < found.value < found.high < 1
    signature = SCORES["bleu"]().signature([["a"], ["b"]])
    assert signature.startswith("sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_an_answers_own_score_is_that_of_a_corpus_of_it_alone():
    for name in ("bleu", "chrf"):
        parts = dict(zip("abc", score(name, OTHERS, EACH).parts, strict=True))
        corpora = zip("abc", OTHERS, EACH, strict=True)
        alone = {prompt: score(name, [text], [golds]).value for prompt, text, golds in corpora}
        assert score_each_answer(name, parts) == pytest.approx(alone) and len({*alone.values()}) > 1
    assert score_each_answer("f1", {"a": 0.5}) == {"a": 0.5}
    assert score_each_answer("nobodys", {"a": (1.0, 2.0, 3.0)}) == {}


@pytest.mark.parametrize(
    ("name", "predictions", "references", "expected"),
    [
        *((name, ["x y z w"] * 3, EACH, 0.0) for name in ("bleu", "rouge2", "exact_match")),
        *((name, ["", ""], [["a b"], ["c d"]], 0.0) for name in ("bleu", "rouge2")),
        ("bleu", OTHERS, BOTH, 1.0),
        # 4 of the prediction's 5 bigrams are among the reference's 5.
        ("rouge2", ["a b c d e x"], [["a b c d e f"]], 0.8),
        ("rouge2", ["a b c"], [["x y z", "a b c"]], 1.0),
        ("exact_match", ["the Eiffel tower."], [["Eiffel Tower"]], 1.0),
        # 2 words in common; precision 2/3, recall 2/2.
        ("f1", ["in old Paris"], [["old Paris"]], 0.8),
        ("exact_match", ["Paris", "unanswerable", "Rome"], [["Paris"], [], ["old Rome"]], 2 / 3),
        ("f1", ["Paris", "unanswerable", "Rome"], [["Paris"], [], ["old Rome"]], (2 + 2 / 3) / 3),
    ],
)
def test_a_score_is_as_defined(name, predictions, references, expected):
    assert score(name, predictions, references).value == pytest.approx(expected)


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
    *((answer, [], 1.0, 1.0) for answer in ("unanswerable", "Unanswerable.", "", " ")),
    ("Paris", [], 0.0, 0.0),
    # Where there is an answer the word is one like any other.
    ("unanswerable", ["Paris"], 0.0, 0.0),
    ("unanswerable", ["Unanswerable"], 1.0, 1.0),
    ("unanswerable", ["unanswerable questions"], 0.0, 2 / 3),
    ("unanswerable because", [], 0.0, 0.0),
]


@pytest.mark.parametrize(("prediction", "golds", "exact", "overlap"), SQUAD)
def test_answers_score_by_the_rules_of_squad_2(prediction, golds, exact, overlap):
    assert normalise_squad_answer("The  Eiffel Tower!") == "eiffel tower"
    assert score("exact_match", [prediction], [golds]).value == exact
    assert score("f1", [prediction], [golds]).value == pytest.approx(overlap)


def test_a_handful_of_prompts_has_no_interval():
    assert score("bleu", OTHERS, EACH).low is score("rouge2", OTHERS, EACH).low is None


@pytest.mark.parametrize(
    ("name", "predictions", "references", "named"),
    [
        ("bleu", "ab", [["a"], []], ["prompt 1"]),
        ("rouge2", "ab", [["a"], []], ["prompt 1"]),
        ("bleu", "a", ["a"], ["must be a list"]),
        ("exact_match", "ab", [["a"]], ["2 predictions", "1 prompts"]),
    ],
)
def test_references_that_cannot_be_scored_against_are_refused(name, predictions, references, named):
    with pytest.raises(ValueError, match=naming(*named)):
        score(name, list(predictions), references)


OWN = str(Path(__file__).with_name("length_ratio.py"))
TEXTS = [SENTENCES[0], "a dog walked on", KEYS]
GOLDS = [OTHERS[:1], ["a dog ran on", "a dog walked on"], [KEY]]


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)


def test_sacrebleu_is_the_corpus_score_of_the_library_on_its_own_scale():
    found, signature = compute_score_columns("sacrebleu", TEXTS, GOLDS)
    streams = [[golds[0] for golds in GOLDS], [None, "a dog walked on", None]]
    expected = sacrebleu.corpus_bleu(TEXTS, streams)
    assert found["sacrebleu_score"].value == pytest.approx(expected.score)
    assert found["sacrebleu_bp"].value == pytest.approx(expected.bp)
    assert list(found) == [f"sacrebleu_{name}" for name in ("score", "bp", "sys_len", "ref_len")]
    assert "tok:13a" in signature
    assert f"evaluate:{evaluate.__version__}|spec_bench" in signature


def test_rouge_is_the_mean_of_the_librarys_f1_over_the_best_reference():
    found, _ = compute_score_columns("rouge", TEXTS, GOLDS)
    scorer = RougeScorer(["rougeL"])
    each = [
        max(scorer.score(gold, text)["rougeL"].fmeasure for gold in golds)
        for text, golds in zip(TEXTS, GOLDS, strict=True)
    ]
    assert found["rouge_rougeL"].value == pytest.approx(sum(each) / 3)
    assert found["rouge_rouge2"].value == pytest.approx(score("rouge2", TEXTS, GOLDS).value)


CHINESE = ["今天天气很好，我们去公园散步。"], [["今天天气很好，我们去公园玩耍。"]]
RUSSIAN = ["мама мыла раму вчера вечером"], [["мама мыла раму вчера утром"]]


@pytest.mark.parametrize(
    ("texts", "tokenize"), [(CHINESE, "zh"), (CHINESE, "char"), (RUSSIAN, "intl")]
)
@pytest.mark.parametrize("name", ["bleu", "sacrebleu", "rouge2", "rouge"])
def test_words_of_any_script_are_found_as_the_setting_says_and_the_signature_too(
    name, texts, tokenize
):
    answers, golds = texts
    found, signature = compute_score_columns(name, answers, golds, tokenize)
    first = next(iter(found.values())).value
    assert f"|tok:{tokenize}|" in signature
    if "bleu" in name:
        expected = sacrebleu.corpus_bleu(answers, golds, tokenize=tokenize).score
        assert first == pytest.approx(expected if name == "sacrebleu" else expected / 100)
    else:
        assert 0.5 < first < 1
    same, _ = compute_score_columns(name, golds[0], golds, tokenize)
    assert next(iter(same.values())).value == pytest.approx(100 if name == "sacrebleu" else 1)


def test_chrf_is_sacrebleus_over_100_within_its_interval_and_needs_no_words():
    for answers, golds in (CHINESE, RUSSIAN, (OTHERS, BOTH), (TEXTS, GOLDS)):
        streams = [[golds[0] for golds in golds], [each[-1] for each in golds]]
        found, signature = compute_score_columns("chrf", answers, golds)
        assert found["chrf"].value == pytest.approx(
            sacrebleu.corpus_chrf(answers, streams).score / 100
        )
    assert signature.startswith(
        "sacrebleu nrefs:var|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"
    )
    many = score("chrf", OTHERS * 2, EACH * 2)
    assert 0 < many.low < many.value < many.high < 1


@pytest.mark.parametrize(
    ("name", "texts", "tokenize", "said"),
    [
        ("bleu", CHINESE, None, True), ("bleu", CHINESE, "zh", False),
        ("bleu", RUSSIAN, None, False), ("rouge2", RUSSIAN, None, True),
        ("rouge", RUSSIAN, "intl", False), ("rouge", (TEXTS, GOLDS), None, False),
        ("rouge2", ([""], [["12 мая 2003 года"]]), None, True),
        ("sacrebleu", CHINESE, "13a", True), ("chrf", CHINESE, None, False),
    ],
)  # fmt: skip
def test_references_whose_letters_make_hardly_any_words_are_said(
    name, texts, tokenize, said, caplog
):
    check_references(name, texts[1], tokenize)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == said
    assert all(name in each and "task.tokenize=zh" in each for each in told)


def test_a_way_to_find_words_that_is_not_there_is_one_line_with_the_choices():
    for tokenize in ("klingon", "ZH"):
        with one_line(f"task.tokenize.*13a.*char.*{tokenize}"):
            check_references("bleu", CHINESE[1], tokenize)


def test_a_users_file_is_a_score_whose_numbers_are_columns():
    texts, golds = ["a b c", "a"] * 3, [["a b"], ["a b c d"]] * 3
    found, signature = compute_score_columns(OWN, texts, golds)
    # Sums: 4 words over 6. Each: 1.5 and 0.25. Texts and lists of parts are no columns.
    assert {name: one.value for name, one in found.items()} == {
        "length_ratio_ratio": pytest.approx(4 / 6),
        "length_ratio_each": pytest.approx(0.875),
    }
    assert {(one.low, one.high) for one in found.values()} == {(None, None)}
    assert "local" in signature
    # Nor is a list that is as long as there are prompts by chance.
    assert list(compute_score_columns(OWN, texts[:2], golds[:2])[0]) == list(found)


def test_a_folder_with_a_module_of_its_name_is_a_score_and_gets_one_reference(tmp_path):
    shutil.copytree(Path(OWN).parent, tmp_path / "length_ratio")
    golds = [["a", "a b c d"], ["a"]]
    found, signature = compute_score_columns(str(tmp_path / "length_ratio"), ["a b", "a"], golds)
    assert found["length_ratio_ratio"].value == 1.5
    assert "references:first" in signature


FUNCTION = """
def compute(predictions, references):
    found = [text in golds for text, golds in zip(predictions, references)]
    return {"found": sum(found) / len(found), "each": [float(one) for one in found]}
"""


def test_a_file_with_a_function_is_a_score_and_gets_every_reference(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION)
    found, _ = compute_score_columns(str(tmp_path / "mine.py"), ["a", "b"], [["b", "a"], ["c"]])
    assert {name: one.value for name, one in found.items()} == {"mine_found": 0.5, "mine_each": 0.5}
    for taken in ("", ", references=()"):  # neither needs a reference
        mine = tmp_path / f"of{len(taken)}.py"
        mine.write_text(
            f"def compute(predictions{taken}):\n    return {{'n': len(predictions[0])}}"
        )
        assert not needs_references(str(mine))
        assert [n.value for n in compute_score_columns(str(mine), ["abc"], [[]])[0].values()] == [3]
    for text, said in (("x = 1", "neither a function compute"), ("def", "SyntaxError|invalid")):
        (tmp_path / "none.py").write_text(text)
        with pytest.raises(ValueError, match=said):
            compute_score_columns(str(tmp_path / "none.py"), ["a"], [["a"]])


def test_booleans_count_as_0_and_1_and_a_number_that_is_none_stays_to_be_told(tmp_path):
    file = tmp_path / "m.py"
    returned = "{'hits': [t == 'a' for t in predictions], 'all': True, 'ratio': float('-inf')}"
    file.write_text(f"def compute(predictions):\n    return {returned}\n")
    found, _ = compute_score_columns(str(file), ["a", "b", "a", "c"], [[]] * 4)
    assert {name: one.value for name, one in found.items()} == {
        "m_hits": 0.5,
        "m_all": 1.0,
        "m_ratio": -math.inf,
    }


@pytest.mark.parametrize("names", [("x/m.py", "y/m.py"), ("x/M.py", "m"), ("rouge", "x/rouge.py")])
def test_two_modules_that_would_fill_the_same_columns_are_refused(names):
    with one_line(f"{names[0]} and {names[1]}.*{names[1][-4:-3].lower()}"):
        refuse_shared_columns([*names, "bleu"])
    refuse_shared_columns([names[0], "bleu", "rouge2", "x/bleu.py"])


@pytest.mark.parametrize(
    ("name", "texts", "golds", "message"),
    [
        (OWN, ["a " * 666], [["a"]], "length_ratio.py, line 23: KeyError: .*of.*beast"),
        ("rouge", ["a", "b"], [["a"], []], "^score rouge: prompt 1"),
    ],
)
def test_a_module_that_fails_is_one_line_that_names_it(name, texts, golds, message):
    with one_line(message):
        compute_score_columns(name, texts, golds)


def test_a_module_that_cannot_be_had_is_said_with_what_works_offline(tmp_path):
    mine = tmp_path / "my_score.py"
    mine.write_text("def score(predictions, references):\n    return {'same': 1.0}\n")
    with pytest.raises(ValueError, match=r"score 'meteor': no score of ours, no file") as caught:
        needs_references("meteor")
    text = str(caught.value)
    assert "\n" not in text
    known = ", ".join([*SCORES, "rouge", "sacrebleu"])
    assert text.endswith(f"without a network: {known}, or a metric module's path")
    with pytest.raises(ValueError, match=naming("'no/where.py'")):
        needs_references("no/where.py")
    with pytest.raises(ValueError, match=naming(mine, "evaluate.Metric")):
        module_metric.load_module_score(str(mine))
