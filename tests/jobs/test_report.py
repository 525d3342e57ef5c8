"""From a results file to a table, a figure and checks."""

from spec_bench.decode.decoder import Decoder
from spec_bench.report.cli.command_line import main
from tests.jobs.tiny import make_task


def test_a_results_file_becomes_a_table_and_a_figure(run_job, tmp_path, capsys):
    enough = f"task.source.path={make_task(tmp_path, rows=5)}"  # prompts for intervals
    run_job("cells=[sd:3,spectr:2x3,rsd_c:2-1-1,rsd_s:2x3]", enough)
    run_job("cells=[sd:3]", "generation.temperature=0.5", enough)
    results = tmp_path / "results" / "default"
    assert main([str(results / "results.csv")]) == 0
    table = (results / "table.md").read_text()
    assert "### xsum, temperature 1\n" in table
    assert "### xsum, temperature 0.5" in table
    for name in ("| ar | - |", "| sd | 3 |", "| spectr | 2x3 |", "| rsd_c |", "| rsd_s |"):
        assert name in table
    assert "rsd_s > rsd_c in block efficiency" in table
    assert (results / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "figure.png" in capsys.readouterr().out


def test_a_failed_cell_stands_in_the_table_without_numbers(run_job, tmp_path, monkeypatch):
    generate = Decoder.generate

    def failing(self, *arguments):
        if self.name == "sd":
            raise RuntimeError("went wrong")
        return generate(self, *arguments)

    monkeypatch.setattr(Decoder, "generate", failing)
    run_job("cells=[sd:3,rsd_s:2x3]")
    results = tmp_path / "results" / "default"
    assert main([str(results / "results.csv")]) == 0
    line = next(
        line for line in (results / "table.md").read_text().splitlines() if "| sd |" in line
    )
    assert line.startswith("| sd | 3 | failed: RuntimeError: went wrong | ")
    assert not any(letter.isdigit() for letter in line.removeprefix("| sd | 3 |"))


def test_a_missing_results_file_is_one_line_and_status_2(tmp_path, capsys):
    assert main([str(tmp_path / "no.csv")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
