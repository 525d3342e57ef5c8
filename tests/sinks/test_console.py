"""The table at a job's end: a score is a column, whoever computed it."""

import io

from rich.console import Console

from spec_bench.records.types import Generation, StepRecord
from spec_bench.sinks.console import Progress, print_table
from tests.cells import result


def printed(**metrics):
    """The words of the header and of the only row."""
    console = Console(file=io.StringIO(), width=200)
    print_table([result(metrics=dict(metrics), task="spider")], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().split()


def test_our_scores_have_short_titles():
    words = printed(
        exact_match=0.5,
        exact_match_low=0.4,
        exact_match_high=0.6,
        f1=0.75,
        f1_low=None,
        f1_high=None,
        execution_accuracy=0.9,
        execution_accuracy_low=0.8,
        execution_accuracy_high=1.0,
        execution_errors=2.0,
        perplexity=1.5,
        perplexity_low=None,
    )
    assert words[:7] == ["task", "decoder", "spec", "PPL", "EM", "F1", "EX"]
    numbers = "1.50 0.50 [0.40, 0.60] 0.75 0.90 [0.80, 1.00]"
    assert words[7:] == ["spider", "sd", "3", *numbers.split()]


def test_an_interval_that_leans_is_printed_by_its_ends():
    assert printed(f1=0.98, f1_low=0.8, f1_high=1.0)[-3:] == ["0.98", "[0.80,", "1.00]"]


def test_a_modules_scores_are_columns_and_other_numbers_are_not():
    words = printed(
        token_rate_end_to_end=99.0,
        token_rate_end_to_end_low=98.0,
        token_rate_end_to_end_high=100.0,
        rouge_rouge2=0.25,
        rouge_rouge2_low=0.2,
        rouge_rouge2_high=0.3,
        peak_memory_bytes=4096.0,
    )
    assert words == [
        "task",
        "decoder",
        "spec",
        "rouge_rouge2",
        "spider",
        "sd",
        "3",
        "0.25",
        "[0.20,",
        "0.30]",
    ]


def test_no_number_is_cut_however_many_scores_there_are():
    scores = {f"module_score_number_{n}{end}": 0.5 for n in range(30) for end in ("", "_low")}
    words = printed(**scores)
    assert words.count("0.50") == 30
    assert "module_score_number_29" in words


def done(prompt_id, steps):
    made = (StepRecord(2, 2, 1, 2),) * steps
    return Generation(prompt_id, (7,) * (2 * steps), "length", made, 0.1, 0.5, 0.1, 0.2)


def test_the_bar_looks_at_what_a_cell_had_done_only_once(capsys):
    looked = 0

    def before():
        nonlocal looked
        for number in range(3):
            looked += 1
            yield done(f"{number}", 1)

    bar = Progress(9, enabled=True)
    for turn in range(4):
        bar.start("sd 3", "cell", before())
        bar.step(2, 6)
        bar.finish(1, [done(f"new {turn}", 2)])
        bar.start("ar -", "other", [])
        bar.finish(1)
    bar.start("sd 3", "cell", before())
    bar.step(1, 2)
    bar.close()
    assert looked == 3
    # 3 calls before, 4 times 2 of its own, one now; two tokens each.
    assert "sd 3 tau=2.00" in capsys.readouterr().err
