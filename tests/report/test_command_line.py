"""The report's command line: help, refusals, what it leaves unloaded, and its W&B report."""

import subprocess
import sys

import pytest

from spec_bench.report.data.rows import read_results_file, refuse_or_separate_models
from spec_bench.settings.arguments import COMMANDS, get_option_arguments, make_parser
from tests.commands import report as main
from tests.report.rows import row, write

RESULTS = "measured"


def run(*arguments):
    """The exit status, whether it is returned or raised."""
    try:
        return main(arguments)
    except SystemExit as stopped:
        return int(stopped.code or 0)


def test_help_names_every_command_and_its_options():
    told = make_parser("report").format_help()
    things = {name.partition(" ")[2] for name in COMMANDS if name.startswith("report ")}
    assert all(f"\n{name} " in told for name in things - {"list", "results"})
    for name in COMMANDS:
        shown = make_parser(name).format_help()
        flags = [each.split(", ")[-1] for each in get_option_arguments(name)]
        assert all(flag in shown for flag in flags if flag.startswith("-"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("table", "rsd/7", "--format", "word"), "'word' (choose from"),
        (("table", "nothing/1"), "known: beyond, dsbd, eagle, mcsd, redrafter, rsd, today"),
        (("table", "rsd/99"), "rsd/ 1-54"),
        (("table", "rsd"), "1-54"),
        (
            ("table", "rsd/7", "--pair", "nothing"),
            "below 'results': none; spec-bench ls pairs",
        ),
        (("figure", "rsd/2"), "rsd/ 1, 4-9"),
        (("claims", "nothing"), "known: beyond, dsbd"),
        (("claims", "rsd"), "no results below"),
        (("list", "nothing"), "known: beyond, dsbd"),
        (("page", "nothing"), "no experiment 'nothing'"),
        (("page", "mine", "--pair", "nothing", "--results", RESULTS), "llama2_7b"),
        (("page", "nothing", "--results", RESULTS), "there: mine"),
        (("all", "--results", "/nowhere"), "no experiment below"),
        (("nothing/results.csv",), "no results file"),
    ],
)
def test_a_wrong_request_is_a_line_of_choices(arguments, words, tmp_path, monkeypatch, capsys):
    if RESULTS in arguments:
        write(tmp_path / RESULTS, "mine", row("sd", "2", block_efficiency=2.0))
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out
    assert RESULTS in arguments or not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [("page", "job"), ("all",), ("claims", "rsd"), ("results/job/results.csv",), ("all", "job")],
)
def test_a_report_on_a_job_that_was_killed_says_what_goes_on(
    arguments, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "runs" / "0123456789ab"
    folder.mkdir(parents=True)
    assert run(*arguments) == 2 and "the same command" not in capsys.readouterr().err
    (folder / "generations.jsonl").write_text('{"prompt_id": "1"')
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("the same command goes on")


def test_every_command_runs_without_loading_torch(tmp_path):
    rates = {"token_rate": (50.0, 49.0, 51.0), "block_efficiency": (2.0, 1.9, 2.1)}
    trees = (("ar", "-"), ("sd", "2"), ("rsd_s", "3x2"))
    write(tmp_path, "rsd-exp1", *(row(decoder, spec, **rates) for decoder, spec in trees))
    code = f"""
import sys
from tests.commands import report as main
for command in (["list"], ["table", "rsd/1", "--out", "t.md"], ["claims", "rsd"], ["all"]):
    assert main([*command, "--results", {str(tmp_path)!r}]) == 0, command
loaded = {{"torch", "transformers", "hydra"}} & set(sys.modules)
assert not loaded, loaded
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rsd_s > sd" in done.stdout
    assert "SpecTr" in (tmp_path / "t.md").read_text() and (tmp_path / "index.html").is_file()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: text.replace(",", ";"), "line 1"),
        (lambda text: text.replace("run_id", "run"), "run_id"),
        (lambda text: text + "1,2,3\n", "line 4"),
        (lambda text: text + "<<<<<<< ours\n", "merge mark"),
        (lambda text: text.replace("1.5", "fast"), "'fast'"),
    ],
)
def test_a_results_file_that_is_none_is_one_line_with_the_place(tmp_path, capsys, change, named):
    rows = row("ar", token_rate=2.5), row("sd", "3", token_rate=1.5)
    file = write(tmp_path, "mine", *rows) / "mine" / "results.csv"
    file.write_text(change(file.read_text()))
    for command in (["results", str(file)], ["table", "rsd/1", "--results", str(tmp_path)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(file) in said and named in said


def test_publishing_without_an_account_is_one_line(monkeypatch, tmp_path, capsys):
    pytest.importorskip("wandb_workspaces", reason="needs the extra `reports`")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(["wandb"]) == 2
    assert "--dry-run FILE needs no account" in capsys.readouterr().err.splitlines()[-1]


def test_without_what_makes_reports_one_line_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert main(["wandb", "--dry-run", "x.json"]) == 2
    assert "pip install -e '.[reports]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        (["figure", "dsbd/99"], "figure"),
        (["table", "rsd/99"], "table"),
        (["claims", "nosuch"], "check claims"),
        (["list", "nosuch"], "report list"),
        (["page", "nosuch"], "page"),
        (["lengths", "nosuch"], "report lengths"),
    ],
)
def test_a_refusal_begins_with_the_command_that_was_typed(given, typed, capsys, tmp_path):
    assert main([*given, "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"spec-bench {typed}: ")


def test_the_command_that_would_measure_a_figure_keeps_the_results_folder(capsys, tmp_path):
    assert main(["figure", "dsbd/4", "--results", str(tmp_path)]) == 2
    assert f"dsbd=fronts --out {tmp_path}" in capsys.readouterr().err


def test_a_papers_list_is_found_by_an_items_name_too(capsys):
    assert main(["list", "rsd/7"]) == 0
    assert "table rsd/7" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["target_digest", "draft_digest"])
def test_two_models_under_one_name_are_refused_unless_they_are_asked_for(tmp_path, capsys, name):
    table, results = "rsd/7", str(tmp_path)
    for number, digest in enumerate(("1a1a1a1a1a", "2b2b2b2b2b", "")):
        write(tmp_path, f"day{number}", row("sd", "3", **{name: digest}, run_id=str(number)))
    mixed = row("sd", "3", **{name: "3c3c3c3c3c"}, run_id="mixed")
    write(tmp_path, "both", row("sd", "3", **{name: "1a1a1a1a1a"}), mixed)
    assert main(["page", "both", "--results", results]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "llama2_7b" in said and "1a1a1a1a, 3c3c3c3c" in said and "--mixed-models" in said
    assert main(["page", "both", "--results", results, "--mixed-models"]) == 0
    shown = (tmp_path / "both" / "page.html").read_text()
    assert " 1a1a1a1a" in shown and " 3c3c3c3c" in shown
    assert main(["page", "day2", "--results", results]) == 0
    assert main(["table", table, "--pair", "llama2_7b", "--results", results]) == 2
    assert "--mixed-models" in capsys.readouterr().err


def test_models_are_told_apart_in_the_rows_that_are_read_so_and_in_no_others(tmp_path):
    models = ("1a1a1a1a1a", "3c3c3c3c3c")
    cells = [row("sd", "3", target_digest=model, run_id=model) for model in models]
    file = write(tmp_path, "both", *cells) / "both" / "results.csv"
    mixed, plain = read_results_file(file, separate_models_later=True), read_results_file(file)
    assert refuse_or_separate_models(mixed).pair.nunique() == 2
    with pytest.raises(ValueError, match="--mixed-models"):
        refuse_or_separate_models(plain)


@pytest.mark.parametrize(("name", "other"), [("target", "my/big"), ("draft", "my/small")])
def test_two_folders_under_one_pair_are_refused_unless_they_are_one_model(
    tmp_path, capsys, name, other
):
    models = {"target": "a/b", "draft": "a/c", "target_digest": "a1", "draft_digest": "b2"}
    mine = {"pair": "mine", **models, "block_efficiency": 2.0}
    second = {**mine, "block_efficiency": 3.0, name: other}
    commands = [f"{each} --pair mine" for each in ("table rsd/7", "figure rsd/4")]
    commands += ["page rsd-exp1", "checks rsd"]

    def status(words, *cells):
        write(tmp_path, "rsd-exp1", row("ar", "-", **mine), row("sd", "3", **mine), *cells)
        return main([*words.split(), "--results", str(tmp_path)])

    for command in commands:
        moved = row("sd", "4", **second, run_id="n")
        assert status(command, moved) == 0
        other_model = row("sd", "3", **{**second, f"{name}_digest": "c3"}, run_id="n")
        assert status(command, other_model) == 2
        said = capsys.readouterr().err
        assert "mine" in said and other in said and "--mixed-models" in said
    if name == "draft":
        heads = row("medusa", "3", **second, run_id="n"), row("medusa", "3", **mine, run_id="h")
        assert status(commands[0], *heads) == 0
        capsys.readouterr()
        assert status(f"{commands[0]} --mixed-models", other_model) == 0
        said = capsys.readouterr().out
        assert (
            "(draft my/small)" in said
            and "(draft a/c)" in said
            and "| 2.144 | 2.000 |" in said
            and "| 3.000 |" in said
        )


def test_checks_without_results_name_what_makes_some(tmp_path, capsys):
    assert main(["claims", "dsbd", "--results", str(tmp_path)]) == 2
    assert "spec-bench run dsbd=one_cache" in capsys.readouterr().err
