"""The Markdown table of a results file: its columns are those that the rows have."""

import pytest

from spec_bench.report.data.rows import groups_of, read_results
from spec_bench.report.page.results_table import results_table
from spec_bench.report.plain import markdown
from tests.report.rows import row, write


def header_and_lines(folder, *rows):
    """The cells of the first table's header and of its rows."""
    file = write(folder, "mine", *rows) / "mine" / "results.csv"
    text = markdown(groups_of(read_results(file)), file)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


COLUMNS = [
    (
        {"exact_match": (0.5, 0.4, 0.6), "f1": 0.75, "execution_accuracy": (0.9, 0.8, 1.0)},
        ["exact match", "f1", "execution accuracy"],
        ["0.500 [0.400, 0.600]", "0.750", "0.900 [0.800, 1.000]"],
    ),
    (
        {"execution_accuracy": 0.5, "execution_errors": 3, "execution_timeouts": 0},
        ["execution accuracy", "execution errors"],
        ["0.500", "3"],
    ),
    (
        {"beam_width": (3.5, 3.0, 4.0), "perplexity": (1.4, 1.25, 1.5)},
        ["beam width", "perplexity"],
        ["3.50 [3.00, 4.00]", "1.40 [1.25, 1.50]"],
    ),
]


@pytest.mark.parametrize(("values", "titles", "texts"), COLUMNS)
def test_what_was_measured_is_a_column(values, titles, texts, tmp_path):
    header, _, line = header_and_lines(tmp_path, row("dsbd", "4x2", run_id="a", **values))
    assert header == ["decoder", "spec", *titles]
    assert line[2:] == texts


def test_scores_of_metric_modules_are_columns_and_nothing_else_is(tmp_path):
    header, _, line = header_and_lines(
        tmp_path,
        row(
            "ar", "-", run_id="a", sacrebleu_score=(31.5, 30.0, 33.0), mine_ratio=(1.5, None, None)
        ),
        row("sd", "2", run_id="b", peak_memory_bytes=4096, block_efficiency=(2.0, 1.5, 2.5)),
    )[:3]
    assert header == ["decoder", "spec", "block efficiency", "sacrebleu score", "mine ratio"]
    assert line[2:] == ["", "31.500 [30.000, 33.000]", "1.500"]


def test_a_speedup_that_stalls_decide_says_so(tmp_path):
    stalled = "stalled: 2 of 90 windows, median says 1.04"
    rows = (
        row("ar", "-", run_id="a", speedup=1.0),
        row("sd", "2", run_id="b", speedup=0.7, reason=f"speedup: {stalled}; later_turns: 1"),
    )
    file = write(tmp_path, "mine", *rows) / "mine" / "results.csv"
    (group,) = groups_of(read_results(file))
    text = markdown([group], file)
    assert "| sd (stalled) | 2 |" in text
    assert f"- xsum: speedup of sd 2: {stalled}" in text
    ar, sd = results_table(group).lines
    assert (ar.marks, sd.marks) == ((), ((stalled, True),))


def test_rows_that_follow_the_law_of_beams_are_marked_and_the_mark_explained(tmp_path):
    beams = row("dsbd", "4x2@0.9", run_id="a", lossless="exact_beam", beam_width=3.0)
    file = write(tmp_path, "mine", row("sd", "2", run_id="b"), beams) / "mine" / "results.csv"
    text = markdown(groups_of(read_results(file)), file)
    assert "| dsbd (beam law) | 4x2@0.9 |" in text
    assert "| sd | 2 |" in text
    assert "- beam law: exact for the law of beam decoding" in text
    plain = write(tmp_path, "plain", row("sd", "2", run_id="b")) / "plain" / "results.csv"
    assert "beam law" not in markdown(groups_of(read_results(plain)), plain)


def test_tokens_delivered_per_call_are_shown_beside_rows_without_block_efficiency(tmp_path):
    def titles(*efficiencies):
        rows = [
            row(
                name,
                "3",
                run_id=name,
                speedup=1.5,
                block_efficiency=tau,
                block_efficiency_stream=1.5,
            )
            for name, tau in zip(("sd", "hf_assisted"), efficiencies, strict=True)
        ]
        folder = tmp_path / str(efficiencies)
        folder.mkdir()
        (group,) = groups_of(read_results(write(folder, "mine", *rows) / "mine" / "results.csv"))
        return [title for title, _ in results_table(group).heads]

    assert "tokens delivered per call" in titles(2.0, None)
    assert "tokens delivered per call" not in titles(2.0, 2.0)
