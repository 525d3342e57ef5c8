"""What somebody else wrote is refused in one line, or has no effect outside of its folder."""

import bz2
import gzip
import json
import lzma
import os
from io import StringIO
from zlib import crc32

import pyarrow
import pytest
from pyarrow import parquet
from rich.console import Console

from scripts.check import received as strangers
from spec_bench.exchange.read import read_answer_file
from spec_bench.exchange.write import write_judged_questions
from spec_bench.jobs.config.compose import compose_config, parse_request
from spec_bench.jobs.store.experiment import Experiment, JobRecord
from spec_bench.jobs.store.store import CellStore
from spec_bench.records import cell_folder
from spec_bench.records.types import CellFacts, CellResult, Generation, Reason
from spec_bench.report.figures.style import ReportFigure, save_figure
from spec_bench.report.tables.render import escape_markdown
from spec_bench.settings import foreign
from spec_bench.settings.foreign import (
    MOST_DEPTH,
    MOST_RESOLVED,
    load_yaml_within_limits,
    refuse_unsafe_config,
)
from spec_bench.sinks.console import print_results
from spec_bench.system import files
from spec_bench.tasks.prompt_files import iter_row_makers
from tests.said import naming
from tests.tasks.conftest import config

CHOICE = {"turns": ["a"], "new_tokens": [3], "wall_time": [1.0], "accept_lengths": [3]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"decode_time": [-1]}, ("decode_time[0]", "-1")),
        ({"decode_time": [1e-300]}, ("decode_time 1e-300", "3 new_tokens")),
        ({"decode_time": [5.0]}, ("decode_time 5.0", "wall_time 1.0")),
        ({"prefill_time": [-0.5], "decode_time": [1.0]}, ("prefill_time[0]", "-0.5")),
        ({"wall_time": [1e-300]}, ("wall_time", "1e-300")),
        ({"wall_time": [float("nan")]}, ("wall_time[0]", "None")),
        ({"wall_time": ["inf"]}, ("wall_time[0]", "inf")),
        ({"wall_time": [True]}, ("wall_time[0]", "True")),
        ({"wall_time": [1e9]}, ("wall_time[0]", "1000000000.0")),
        ({"wall_time": [1.0, 1.0]}, ("wall_time", "2 turns", "new_tokens of 1")),
        ({"new_tokens": [10**9]}, ("new_tokens[0]", "1000000000", "1048576")),
        ({"new_tokens": [True]}, ("new_tokens[0]", "True")),
        ({"new_tokens": [-1]}, ("new_tokens[0]", "-1")),
        ({"new_tokens": 3}, ("new_tokens", "3")),
        ({"accept_lengths": [10**9]}, ("accept_lengths[0]", "1000000000", "4096")),
        ({"accept_lengths": None, "idxs": [10**9]}, ("idxs[0]", "1000000000")),
    ],
)
def test_an_answer_with_an_impossible_number_is_refused_by_file_line_field_and_value(
    changed, said, tmp_path
):
    path = tmp_path / "theirs.jsonl"
    line = {"question_id": 1, "model_id": "m", "choices": [CHOICE]}
    other = {**line, "question_id": 2, "choices": [{**CHOICE, **changed}]}
    path.write_text(f"{json.dumps(line)}\n{json.dumps(other)}\n")
    with pytest.raises(ValueError, match=naming("theirs.jsonl", "line 2", *said)):
        read_answer_file(path)


def test_an_answer_that_came_in_one_chunk_has_nothing_left_to_decode(tmp_path):
    path = tmp_path / "served.jsonl"
    choice = {**CHOICE, "new_tokens": [1], "accept_lengths": []}
    times = {"wall_time": [0.2], "prefill_time": [0.2], "decode_time": [0.0]}
    path.write_text(json.dumps({"question_id": 1, "choices": [{**choice, **times}]}))
    assert read_answer_file(path).generations[0].decode_s == 0.0


def first_row(path):
    return next(iter(iter_row_makers(path, "task jsonl")))()


def test_a_prompt_is_neither_nested_deep_nor_millions_of_characters_long(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "MOST_TEXT", 900)
    for name, text, said in [
        ("deep.jsonl", '{"prompt": ' + "[" * 200_000 + "]" * 200_000 + "}", f"than {MOST_DEPTH}"),
        ("some.json", '{"prompt": ' + "[" * 70 + "]" * 70 + "}", f"than {MOST_DEPTH}"),
        ("long.jsonl", json.dumps({"prompt": "a" * 901}), "901 characters, at most 900"),
        ("long.txt", "a" * 901, "901"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=naming(name, "line 1", said)):
            first_row(tmp_path / name)


def test_a_packed_file_that_unpacks_to_hundreds_of_times_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "FREE_BYTES", 2**20)
    for name, packer in (("x.jsonl.gz", gzip), ("x.jsonl.bz2", bz2), ("x.txt.xz", lzma)):
        (tmp_path / name).write_bytes(packer.compress(b"\n" * 9_000_000))
        with pytest.raises(ValueError, match=naming(name, "MiB")):
            first_row(tmp_path / name)
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["x" * 1000] * 9000}), path, store_schema=False)
    with pytest.raises(ValueError, match=naming("x.parquet", "MiB")):
        first_row(path)


def test_lines_are_numbered_with_the_blank_ones_between_them(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("\n\nfirst\n \nlast\r\n")
    rows = [make() for make in iter_row_makers(path, "task jsonl")]
    assert [(row.place, row["prompt"]) for row in rows] == [("line 3", "first"), ("line 5", "last")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hydra: {callbacks: {x: {_target_: pandas.read_pickle}}}", "hydra.callbacks"),
        ("# @package hydra.callbacks\nx: {}", "hydra.callbacks"),
        ("defaults: [x@hydra.callbacks: y]", "hydra.callbacks"),
        ("defaults: [override hydra/launcher: slurm]", "override hydra/launcher"),
        ("hydra.job_logging: {}", "hydra.job_logging"),
        ("hydra: {sweeper: {params: {+hydra.run.dir: /}}}", "hydra.run.dir"),
        ("hydra: {sweeper: {_target_: os.system}}", "_target_"),
        ("hydra: {launcher: {_target_: os.system}}", "_target_"),
        ("tree: {_target_: os.system}", "tree._target_"),
        ("hydra: {searchpath: [file:///tmp]}", "hydra.searchpath"),
        ("a: &a [1, *a]", "100000 values"),
        ("a: &a [x, x]\n" + "\n".join(f"{b}: &{b} [*{a}, *{a}]" for a, b in
            zip("abcdefghijklmnopqrst", "bcdefghijklmnopqrstu", strict=True)), "100000 values"),
        ("a: " + "[" * 5000 + "]" * 5000, f"than {MOST_DEPTH}"),
    ],
)  # fmt: skip
def test_a_config_of_somebody_elses_calls_nothing_and_takes_no_memory(text, said):
    with pytest.raises(ValueError, match=naming(said)):
        refuse_unsafe_config(text, "decoder/theirs")


def test_a_config_of_ones_own_has_its_sweeps_values_and_its_launchers_settings():
    refuse_unsafe_config(
        "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1'}}}", "experiment/mine"
    )
    refuse_unsafe_config("defaults: [joblib]\nn_jobs: 2", "hydra/launcher/mine")
    refuse_unsafe_config("hydra: {launcher: {n_jobs: 2}}", "experiment/mine")
    assert load_yaml_within_limits("a: &a {b: 1}\nc: {<<: *a}") == {"a": {"b": 1}, "c": {"b": 1}}
    for name in ("hydra/launcher/basic", "hydra/config", "hydra/job_logging/stdout"):
        with pytest.raises(ValueError, match=naming(name.replace("/", "."))):
            refuse_unsafe_config("x: 1", name)


def test_interpolations_that_double_what_others_stand_for_are_refused(tmp_path):
    (tmp_path / "experiment").mkdir()
    start = "# @package _global_\na0: x\n"
    doubled = "".join(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 30))
    (tmp_path / "experiment" / "mine.yaml").write_text(start + doubled)
    words = ["experiment=mine", f"hydra.searchpath=[file://{tmp_path}]"]
    with pytest.raises(ValueError, match=naming(f"more than {MOST_RESOLVED}")):
        parse_request(compose_config(words))


def test_a_pickle_that_a_config_names_is_not_loaded(tmp_path, monkeypatch):
    folder = tmp_path / "conf" / "decoder"
    folder.mkdir(parents=True)
    call = "{_target_: pathlib.Path.touch, self: here}"
    (folder / "mine.yaml").write_text(
        f"# @package _global_\nhydra: {{callbacks: {{x: {call}}}}}\ndecoder: {{name: sd}}\n"
    )
    words = ["decoder=mine", f"hydra.searchpath=[file://{tmp_path / 'conf'}]"]
    with pytest.raises(ValueError, match=naming("mine.yaml", "hydra.callbacks")):
        compose_config(words)


@pytest.fixture
def secret(tmp_path):
    """A file of the user's, outside of every results folder."""
    path = tmp_path / "secret"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"


@pytest.fixture
def received(tmp_path, secret):
    """A results folder of somebody else's in which every file that is written is a link."""
    results = tmp_path / "results"
    run, notes = results / "runs" / "a", results / "runs" / "jobs" / "name"
    table = results / "name" / files.RESULTS
    for folder in (run, notes, table.parent):
        folder.mkdir(parents=True)
    for path in (run / ".lock", run / files.GENERATIONS, notes / ".lock", table):
        path.symlink_to(secret)
    for path in (table.with_name("figure.png"), table.with_name(files.RECORDS)):
        path.symlink_to(secret)
    return results


def test_links_in_a_received_folder_lead_no_writer_to_the_users_files(received):
    store = CellStore(received, "a")
    for write in (
        store.lock,
        lambda: store.append_generations([]),
        lambda: store.repair_and_load(),
    ):
        with pytest.raises(OSError, match=naming("symbolic links")):
            write()
    with pytest.raises(OSError, match=naming(".lock")):
        Experiment(received, "name").rebuild_tables()
    (path,) = save_figure(ReportFigure((1, 1)), received / "name", "figure", ("png",))
    assert not path.is_symlink() and path.read_bytes()[1:4] == b"PNG"


def test_a_note_of_a_job_makes_no_table_behind_a_dangling_link(tmp_path, secret):
    table = files.get_results_file(tmp_path / "results", "name")
    table.parent.mkdir(parents=True)
    table.symlink_to(tmp_path / "nowhere")
    Experiment(tmp_path / "results", "name").write_job_record(JobRecord(0, ("a",)))
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_in_a_received_folder_is_not_waited_for(tmp_path):
    store = CellStore(tmp_path, "a")
    store.folder.mkdir(parents=True)
    os.mkfifo(store.folder / ".lock")
    with pytest.raises(OSError, match=naming(".lock")):
        store.lock()


def test_the_task_of_a_received_row_is_no_way_out_of_the_folder_of_answers(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"prompt": "Where?", "id": "1"}')
    task = {**config("jsonl", path=str(tmp_path / "q.jsonl")), "judged": True, "chat": False}
    store = CellStore(tmp_path / "results", "a")
    store.write_settings({"task": task}, {})
    row = {"run_id": "a", "task": "../../out"}
    with pytest.raises(ValueError, match=naming("../../out", "answers")):
        write_judged_questions([row], [store.folder], tmp_path / "results" / "answers")
    assert not (tmp_path / "out").exists()


def test_names_in_a_received_row_lead_nowhere_else(tmp_path):
    for name in ("../../x", "/x"):
        with pytest.raises(ValueError, match=naming(name, "out of")):
            files.join_path_inside(tmp_path / "answers", f"{name}/question.jsonl")
    for run_id in ("..", "../a", "", "/etc"):
        with pytest.raises(ValueError, match=naming("run_id", repr(run_id))):
            files.get_run_folder(tmp_path, run_id)
    with pytest.raises(ValueError, match=naming("../x")):
        files.get_results_file(tmp_path, "../x")
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(ValueError, match=naming("link")):
        files.get_results_file(tmp_path, "link")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": [10**12]}, "1000000000000"),
        ({"tokens": [-1]}, "-1"),
        ({"decode_s": -1.0}, "-1.0"),
        ({"prefill_s": float("inf")}, "inf"),
    ],
)
def test_a_received_generation_with_an_impossible_number_is_a_fault_of_its_line(
    change, said, tmp_path
):
    good = Generation("0", (5, 6), "length", (), 0.1, 1.0, 0.0, 0.0)
    path = tmp_path / "a" / files.GENERATIONS
    path.parent.mkdir()
    bad = json.dumps({**good.to_json(), **change}, separators=(",", ":"))[:-1]
    check = f"{crc32(bad.encode(), crc32(b'a')):08x}"
    path.write_text(cell_folder.format_generation_line(good, "a") + f'{bad},"check":"{check}"}}\n')
    found = cell_folder.read_generation_lines(path)
    assert found.generations == (good,) and len(found.faults) == 1
    assert said in found.faults[0] and "line 2" in found.faults[0]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"starts": [7]}, "starts"),
        ({"scores": {"x": "y"}}, "scores"),
        ({"result": [1]}, "result"),
        ({"settings": "x"}, "settings"),
    ],
)
def test_a_received_cell_has_values_of_the_types_that_ours_have(change, key, tmp_path):
    run = tmp_path / "a"
    run.mkdir()
    cell_folder.write_cell_json(run, {"settings": {}, **change})
    with pytest.raises(ValueError, match=naming("cell.json", key)):
        cell_folder.read_cell_json(run)


def test_tables_and_terminals_show_a_strangers_escapes_and_links_as_text():
    category = "\x1b]0;owned\x07[prize](http://thief.example)"
    assert "](" not in escape_markdown(category) and "\\x1b" in escape_markdown(category)
    facts = CellFacts("pair", "t", ("d",), "task", "sd\x1b[2J", "3")
    stream = StringIO()
    result = CellResult("a", facts, "failed", reasons=(Reason("", "why\x1b[0m"),))
    print_results([result], (), console=Console(file=stream))
    assert "\x1b" not in stream.getvalue() and "\\x1b[2J" in stream.getvalue()


@pytest.mark.slow
def test_a_sample_of_what_strangers_send_is_refused_or_without_effect():
    cases = strangers.cases_of(["answers", "folders", "configs"], sample=4, seed=1)
    assert [each.wrong for each in strangers.attempt_all(cases)] == [""] * len(cases)
