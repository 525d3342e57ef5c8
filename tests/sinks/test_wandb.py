"""What W&B is given equals what the CSV and the records hold, once."""

import json
import re
import shlex
import time
from operator import itemgetter
from statistics import mean
from unittest.mock import Mock

import pytest
import wandb

from spec_bench.jobs.store.store import CellStore
from spec_bench.measure.energy import rapl
from spec_bench.measure.provenance import collect_provenance
from spec_bench.sinks.sink import WandbSettings
from spec_bench.sinks.wandb import (
    HISTORY,
    WandbSink,
    _log_offline_hint_once,
    open_wandb_run,
    read_logged_projects,
)
from spec_bench.system import files
from tests.commands import report
from tests.jobs.tiny import failing, make_task, rows_of
from tests.sinks.offline_run import offline_runs, read_run

ON = ("sink=wandb", "sink.progress=false", "sink.table=false")
JOB = ("cells=[sd:3,rsd_s:2x2]", "warmup=0", *ON)
OWN = ("_wandb", "_runtime", "_step", "_timestamp")  # what W&B adds


def runs_below(tmp_path, name="default"):
    return offline_runs(tmp_path / "results" / name)


def like(value, text):
    """A text of the CSV as W&B has it."""
    return text if isinstance(value, str) else float(text)


def test_summary_history_and_table_read_back_equal_the_csv_and_the_records(
    run_job, tmp_path, capsys
):
    run_job(*JOB, f"task.source.path={make_task(tmp_path, rows=5)}")  # as few as have intervals
    runs, rows = runs_below(tmp_path), rows_of(tmp_path / "results")
    assert len(rows) == 3
    for row in rows:
        (run,) = runs[row["run_id"]]
        logged = {**run.config["labels"], **run.summary, "run_id": run.config["run_id"]}
        # The CSV's empty cells are not logged; every other value is, to the last digit.
        logged = {k: v for k, v in logged.items() if v not in ("", None) and k not in OWN}
        assert logged == {name: like(logged[name], text) for name, text in row.items() if text}
        assert isinstance(run.summary["block_efficiency_low"], float | int)
        assert run.exit_code == 0
        records = list(CellStore(tmp_path / "results", row["run_id"]).load_first_repeat().values())
        assert list(run.history) == [0, 1, 2, 3, 4] == list(range(len(records)))
        for step, record in enumerate(records):
            line, accepted = run.history[step], [s.accepted for s in record.steps]
            assert line["prompt/decode_s"] == record.decode_s
            assert line["prompt/token_rate"] == len(record.tokens) / record.decode_s
            assert line["prompt/accepted_mean"] == sum(accepted) / len(accepted)
            assert (line["prompt/id"], line["prompt/latency_s"]) == (
                record.prompt_id,
                record.latency_s,
            )
        last = run.history[4]["prompt/block_efficiency_so_far"]
        assert last == float(row["block_efficiency"])
    (run_id,) = runs.keys() - {row["run_id"] for row in rows}
    (run,) = runs[run_id]
    assert run_id.startswith("results-")
    assert (run.run.job_type, run.run.run_group) == ("table", "default")
    folder = next((tmp_path / "results" / "default" / "wandb").glob(f"offline-run-*{run_id}"))
    table = json.loads((folder / "files" / run.summary["results"]["path"]).read_text())
    for values, row in zip(table["data"], rows, strict=True):
        mine = dict(zip(table["columns"], values, strict=True))
        assert mine == {
            name: like(mine[name], text) if text else None for name, text in row.items()
        }
        assert list(mine) == list(row)
        assert isinstance(mine["block_efficiency"], int | float)
        assert isinstance(mine["run_id"], str)

    back = tmp_path / "back.csv"
    told = ("wandb", "--offline", str(tmp_path / "results"), "--out", str(back))
    assert report(told) == 0
    assert capsys.readouterr().out.count("rsd_s 2x2") == 1
    by_id = itemgetter("run_id")  # runs of one second have no order of their own
    for row, again in zip(
        sorted(rows, key=by_id), sorted(files.read_csv(back), key=by_id), strict=True
    ):
        assert {k: like(1.0, v) if re.match(r"[\d.]+$", v) else v for k, v in again.items()} == {
            k: like(1.0, v) if re.match(r"[\d.]+$", v) else v for k, v in row.items()
        }


def test_a_config_names_the_commit_and_versions_and_a_line_is_of_the_time_of_its_prompt(
    run_job, tmp_path
):
    began = time.time()
    *_, run_id = (each.run_id for each in run_job(*JOB, "task.scores=[rouge2,bleu]"))
    ended = time.time()
    ((run,),) = (runs for name, runs in runs_below(tmp_path).items() if name == run_id)
    state = collect_provenance()
    checkout = state["git"] or {"revision": None, "dirty": None}
    assert run.config["commit"] == checkout["revision"]
    assert run.config["uncommitted_changes"] == checkout["dirty"]
    own = {"spec_bench": state["spec_bench"], "python": state["python"]}
    assert run.config["versions"] == {**state["versions"], **own}
    assert {"torch", "transformers", "wandb"} <= {*run.config["versions"]}
    times = [line["_timestamp"] for line in run.history.values()]
    records = CellStore(tmp_path / "results", run_id).load_first_repeat().values()
    assert times == pytest.approx([each.ended_at for each in records])
    assert began < times[0] < times[-1] < ended and times == sorted(times)
    rows = {row["run_id"]: row for row in rows_of(tmp_path / "results")}
    means = [mean(line[f"prompt/{name}"] for line in run.history.values()) for name in ("rouge2",)]
    assert means == pytest.approx([float(rows[run_id]["rouge2"])])
    assert all(0 <= line["prompt/bleu"] <= 1 for line in run.history.values())


def test_project_group_and_entity_are_those_of_the_environment_unless_settings_name_others(
    run_job, tmp_path, monkeypatch
):
    for name, value in {"PROJECT": "ours", "RUN_GROUP": "night", "ENTITY": "team"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    one = ("cells=[sd:3]", *ON, "prompts=1")
    run_job(*one)
    run_job(*one, "name=second", "sink.wandb.project=mine", "sink.wandb.group=day")
    first, second = runs_below(tmp_path), runs_below(tmp_path, "second")
    places = [
        {(run.run.project, run.run.run_group, run.run.entity) for (run,) in runs.values()}
        for runs in (first, second)
    ]
    assert places == [{("ours", "night", "team")}, {("mine", "day", "team")}]
    assert read_logged_projects(tmp_path / "results" / "second" / "results.csv") == {"mine"}
    run_job(*one, "name=third")  # in the first's project and group, and its table is another run
    (table,) = runs_below(tmp_path, "third").values()
    assert table[0].config["experiment"] == "third" and table[0].run.run_id not in first
    monkeypatch.setenv("WANDB_PROJECT", "team/bench")
    with pytest.raises(ValueError, match=r"sink\.wandb\.project .*'team/bench'"):
        run_job(*one, "name=fourth")


def test_every_key_that_a_report_plots_is_one_that_its_runs_have_logged(
    run_job, tmp_path, monkeypatch
):
    pytest.importorskip("wandb_workspaces", reason="needs the extra `reports`")
    monkeypatch.setattr(rapl, "_read_integer", growing)
    package = tmp_path / "powercap" / "intel-rapl:0"
    package.mkdir(parents=True)
    (package / "name").write_text("package-0")
    metered = ("energy=rapl", f"energy.root={package.parent}", "energy.idle_s=0")
    scores = ("task.scores=[rouge2,bleu]", f"task.source.path={make_task(tmp_path, rows=5)}")
    run_job(*JOB, *metered, *scores)
    logged = {
        name: {key for run in runs for part in (run.summary, *run.history.values()) for key in part}
        for name, runs in runs_below(tmp_path).items()
    }
    file = tmp_path / "report.json"
    assert report(("wandb", "--results", str(tmp_path / "results"), "--dry-run", str(file))) == 0
    grids = [
        each["metadata"] for each in json.loads(file.read_text())["blocks"] if "metadata" in each
    ]
    plotted = set()
    for grid in grids:
        panels = grid["panelBankSectionConfig"]["panels"]
        keys = {key for panel in panels for key in keys_of(panel)}
        (runs,) = (each["filters"]["filters"][0]["value"] for each in grid["runSets"])
        shown = [*logged.values()] if runs == "table" else [logged[each] for each in runs]
        assert keys <= set.union(*shown)
        plotted |= keys
    assert {"speedup", "energy_j_per_token_low", "rouge2", "bleu_high", "prompt/bleu"} <= plotted
    assert {"results", "nodes_per_call", "prompt/energy_j", *HISTORY} <= plotted


def growing(path):
    """A counter of a processor that takes five watts."""
    return 10**15 if path.name.startswith("max") else time.perf_counter_ns() // 200


def keys_of(panel):
    """What a panel plots of runs: of a table its name."""
    config = panel["config"]
    if panel["viewType"] == "Weave":
        return {"results"} & {*re.findall(r"\w+", json.dumps(config))}
    axes = (config[axis].removeprefix("summary:") for axis in ("xAxis", "yAxis") if axis in config)
    return {*config.get("metrics", axes)}


def test_the_command_that_sends_offline_runs_is_quoted_and_a_folder_that_is_none_is_named(
    tmp_path, capsys, caplog
):
    _log_offline_hint_once(tmp_path / "größe 1")
    (line,) = caplog.messages
    *_, last = shlex.split(line)
    assert last == f"{(tmp_path / 'größe 1').resolve()}/wandb/offline-run-*"
    assert report(["wandb", "--offline", str(tmp_path / "nix")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_folder_without_offline_runs_and_a_damaged_run_are_a_line(tmp_path, capsys):
    given = ("wandb", "--offline", str(tmp_path))
    assert report(given) == 2
    (tmp_path / "run-x.wandb").write_text("nothing of W&B's")
    assert report(given) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in first and "run-x.wandb" in second


@pytest.mark.parametrize("name", ["team/bench", "a#b", "p" * 129, ""])
def test_a_project_that_wandb_refuses_is_refused_before_decoding(name, run_job, tmp_path):
    with pytest.raises(ValueError, match=r"sink\.wandb\.project .*128.*sink\.wandb\.entity"):
        run_job("cells=[sd:3]", *ON, f"sink.wandb.project='{name}'")
    assert not (tmp_path / "results").exists()


def test_a_long_name_is_a_group_that_wandb_takes(run_job, tmp_path):
    name = "n" * 190
    run_job("cells=[sd:3]", *ON, "prompts=1", f"name={name}")
    runs = runs_below(tmp_path, name)
    assert {run.run.run_group for (run,) in runs.values()} == {"n" * 128}


def test_a_run_bears_group_type_tags_and_settings_and_no_system_metrics(run_job, tmp_path):
    results = run_job(*JOB, "name=trial", "sink.wandb.tags=[mine]", "prompts=1")
    runs = runs_below(tmp_path, "trial")
    (run,) = runs[results[2].run_id]
    assert (run.run.run_group, run.run.job_type, run.run.project) == ("trial", "xsum", "spec_bench")
    assert run.run.display_name == "rsd_s 2x2"
    assert list(run.run.tags) == ["rsd_s", "2x2", "target+draft", "xsum", "exact", "mine"]
    assert run.config["generation"]["temperature"] == 1.0
    assert run.config["decoder"]["name"] == "rsd_s"
    assert not run.kinds & {"stats", "environment", "output", "output_raw"}


def test_a_job_whose_cells_are_complete_is_not_logged_twice(run_job, tmp_path):
    run_id = run_job(*JOB)[1].run_id
    folder = tmp_path / "results"
    before = {*folder.glob("*/wandb/offline-run-*")}
    run_job(*JOB)
    assert {*folder.glob("*/wandb/offline-run-*")} == before and len(before) == 4
    (note,) = json.loads((folder / "runs" / run_id / "wandb.json").read_text())
    assert (note["id"], note["mode"], note["content"]) == (run_id, "offline", "complete")


def test_a_cell_that_two_experiments_share_is_one_run_of_the_first(run_job, tmp_path):
    run_job("cells=[sd:3]", *ON, "prompts=2")
    run_job("cells=[sd:3,sd:2]", *ON, "prompts=2", "name=second")
    first, second = runs_below(tmp_path), runs_below(tmp_path, "second")
    assert len(first) == 3  # two cells and the table
    assert [runs[0].run.job_type for runs in second.values()].count("xsum") == 1
    assert not set(first) & set(second)


def test_a_failed_cell_that_is_run_again_continues_its_run(run_job, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        failing(patch, RuntimeError("out of luck"), "sd", "2")
        run_job(*JOB)
    time.sleep(1)  # W&B names a folder by the second of its start
    results = run_job(*JOB)
    runs = runs_below(tmp_path)
    failed, resumed = runs[results[1].run_id]
    assert (failed.summary["status"], resumed.summary["status"]) == ("partial", "complete")
    assert (failed.summary["prompts_failed"], resumed.summary["prompts_failed"]) == (1, 0)
    assert (failed.exit_code, resumed.exit_code) == (1, 0)
    assert failed.summary["reason"].startswith("prompts_failed: 1 of 4: '2', RuntimeError: out of")
    # Folder by folder each prompt is there once, and the second has the one that was left out.
    assert (list(failed.history), list(resumed.history)) == ([0, 1, 2], [3])
    assert resumed.summary["block_efficiency"] == results[1].metrics["block_efficiency"]
    assert failed.run.run_id == resumed.run.run_id
    assert len(runs[results[2].run_id]) == 1
    table = runs[f"results-{files.hash_json(['default', 'target+draft', 'xsum'])}"]
    assert [len(part.history) for part in table] == [1, 1]
    assert min(table[1].history) > max(table[0].history)


def test_disabled_logs_nothing_and_leaves_no_note(run_job, tmp_path):
    run_job("cells=[sd:3]", *ON, "prompts=1", "sink.wandb.mode=disabled")
    assert not list(tmp_path.glob("results/**/wandb*"))


@pytest.mark.parametrize(
    ("mode", "said"),
    [("onlin", r" .*'onlin'"), ("online", r"=online: .*API key.* Offline needs no account")],
)
def test_a_mode_that_cannot_be_is_said_before_anything_is_decoded(mode, said, run_job, tmp_path):
    with pytest.raises(ValueError, match=rf"sink\.wandb\.mode{said}"):
        run_job("cells=[sd:3]", *ON, f"sink.wandb.mode={mode}")
    assert not (tmp_path / "results").exists()


def test_a_failure_of_wandb_loses_no_result_and_is_made_good_by_the_next_run(
    run_job, tmp_path, monkeypatch, caplog
):
    def refuse(**_):
        raise wandb.errors.CommError("no route\nto the server")

    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", refuse)
        assert len(run_job("cells=[sd:3]", *ON, "prompts=1")) == 2
    assert len(rows_of(tmp_path / "results")) == 2
    assert "W&B: CommError: no route to the server; the same command" in caplog.text
    run_job("cells=[sd:3]", *ON, "prompts=1")
    assert len(runs_below(tmp_path)) == 3


def test_a_run_that_the_caller_has_open_goes_on(run_job, tmp_path):
    own = wandb.init(project="mine", mode="offline", dir=str(tmp_path))
    run_job("cells=[sd:3]", *ON, "prompts=1")
    assert wandb.run is own
    own.log({"still": 1})
    own.finish()


def test_records_longer_than_a_block_are_read_back(tmp_path):
    run = wandb.init(project="p", mode="offline", dir=str(tmp_path), reinit="create_new")
    texts = {f"text{number}": "x" * 40_000 for number in range(3)}
    run.summary.update(texts)
    run.finish()
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    assert {name: read_run(folder).summary[name] for name in texts} == texts


def test_a_run_that_goes_on_is_named_behind_its_first_part_whatever_the_clock_says(
    tmp_path, monkeypatch
):
    given, note = [], {"id": "run"}
    monkeypatch.setattr(wandb, "init", lambda **settings: given.append(settings) or Mock())
    for now in (2e9, 1e9, 3e9):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        with open_wandb_run(WandbSink(WandbSettings(), tmp_path), note, "sd 3", "xsum", (), {}):
            pass
    assert [each["settings"].x_start_time for each in given] == [2e9, 2e9 + 1, 3e9]
    assert [each["id"] for each in given] == ["run"] * 3
