"""Modules of ``evaluate``: those that ship here, a user's file, and what cannot be fetched."""

import shutil
from pathlib import Path

import evaluate
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from spec_bench.metrics import CellRecords, check_score, module_metric, summarise
from spec_bench.metrics.quality import quality_columns
from spec_bench.records.types import Generation, StepRecord
from spec_bench.vocabulary import columns
from tests.said import naming

OWN = str(Path(__file__).with_name("length_ratio.py"))
TEXTS = ["the cat sat on the mat today", "a dog walked on", "nobody knows where my keys are"]
GOLDS = [
    ["the cat sat on a mat today"],
    ["a dog ran on", "a dog walked on"],
    ["nobody knows where the key is"],
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """No test reaches the hub."""
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)


def test_sacrebleu_is_the_corpus_score_of_the_library_on_its_own_scale():
    found, signature = quality_columns("sacrebleu", TEXTS, GOLDS)
    streams = [[golds[0] for golds in GOLDS], [None, "a dog walked on", None]]
    expected = sacrebleu.corpus_bleu(TEXTS, streams)
    assert found["sacrebleu_score"].value == pytest.approx(expected.score)
    assert found["sacrebleu_bp"].value == pytest.approx(expected.bp)
    assert list(found) == [f"sacrebleu_{name}" for name in ("score", "bp", "sys_len", "ref_len")]
    assert "tok:13a" in signature
    assert f"evaluate:{evaluate.__version__}|spec_bench" in signature


def test_sacrebleu_and_our_bleu_are_one_number_on_two_scales():
    golds = [golds[:1] for golds in GOLDS]
    module, _ = quality_columns("sacrebleu", TEXTS, golds)
    ours, _ = quality_columns("bleu", TEXTS, golds)
    assert module["sacrebleu_score"].value / 100 == pytest.approx(ours["bleu"].value)


def test_rouge_is_the_mean_of_the_librarys_f1_over_the_best_reference():
    found, _ = quality_columns("rouge", TEXTS, GOLDS)
    scorer = RougeScorer(["rougeL"])
    each = [
        max(scorer.score(gold, text)["rougeL"].fmeasure for gold in golds)
        for text, golds in zip(TEXTS, GOLDS, strict=True)
    ]
    assert found["rouge_rougeL"].value == pytest.approx(sum(each) / 3)
    assert found["rouge_rouge2"].value == pytest.approx(
        quality_columns("rouge2", TEXTS, GOLDS)[0]["rouge2"].value
    )


def test_a_users_file_is_a_score_whose_numbers_are_columns():
    texts, golds = ["a b c", "a"] * 3, [["a b"], ["a b c d"]] * 3
    found, signature = quality_columns(OWN, texts, golds)
    # Sums: 4 words over 6. Each: 1.5 and 0.25. Texts and lists of parts are no columns.
    assert {name: one.value for name, one in found.items()} == {
        "length_ratio_ratio": pytest.approx(4 / 6),
        "length_ratio_each": pytest.approx(0.875),
    }
    assert {(one.low, one.high) for one in found.values()} == {(None, None)}
    assert "local" in signature


def test_a_list_as_long_as_there_are_prompts_by_chance_is_no_column():
    found, _ = quality_columns(OWN, ["a b c", "a"], [["a b"], ["a b c d"]])
    assert list(found) == ["length_ratio_ratio", "length_ratio_each"]


def test_a_folder_with_a_module_of_its_name_is_a_score(tmp_path):
    (tmp_path / "length_ratio").mkdir()
    shutil.copy(OWN, tmp_path / "length_ratio")
    found, _ = quality_columns(str(tmp_path / "length_ratio"), ["a b", "a"], [["a"], ["a"]])
    assert found["length_ratio_ratio"].value == 1.5


def test_a_module_that_takes_one_reference_gets_the_first_and_the_signature_says_so():
    found, signature = quality_columns(OWN, ["a b", "a"], [["a", "a b c d"], ["a"]])
    assert found["length_ratio_ratio"].value == 1.5
    assert "references:first" in signature


def test_a_module_that_fails_is_one_line_that_names_it():
    with pytest.raises(ValueError, match=r"^score length_ratio: KeyError: .*the number of.*beast"):
        quality_columns(OWN, ["a " * 666, "a"], [["a"], ["a"]])


def test_a_prompt_without_reference_is_refused():
    with pytest.raises(ValueError, match=naming("score rouge", "prompt 1")):
        quality_columns("rouge", ["a", "b"], [["a"], []])


def test_what_the_hub_cannot_give_is_said_with_what_works_offline():
    with pytest.raises(ValueError, match=r"score 'meteor': no score of ours, no file") as caught:
        check_score("meteor")
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(
        "without a network: bleu, rouge2, exact_match, f1, execution_accuracy, pass_at_1, rouge, "
        "sacrebleu, or a metric module's path"
    )


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=naming("'no/where.py'")):
        check_score("no/where.py")


def test_columns_of_modules_come_beside_ours():
    steps = (StepRecord(3, 3, 1, 2),)
    cell = [Generation(name, (1, 2), "stop", steps, 0.5, 1.0, 0.2, 0.5) for name in "ab"]
    texts, golds = dict(zip("ab", TEXTS, strict=False)), dict(zip("ab", GOLDS, strict=False))
    row = summarise(CellRecords(cell, texts=texts, references=golds), ["bleu", "rouge"])
    extra = {name: value for name, value in row.items() if name not in columns.header()}
    assert [name for name, value in extra.items() if value is not None] == [
        *("rouge_rouge1", "rouge_rouge2", "rouge_rougeL", "rouge_rougeLsum")
    ]
    assert row["bleu"] is not None
    assert "rouge2" not in row
    assert row["quality_signature"].count("; ") == 1


def test_a_file_that_is_no_metric_module_says_what_one_is(tmp_path):
    mine = tmp_path / "my_score.py"
    mine.write_text("def score(predictions, references):\n    return {'same': 1.0}\n")
    with pytest.raises(ValueError, match=naming(mine, "evaluate.Metric")):
        module_metric.load_module(str(mine))
