"""Printed commands are run, here or by ``make rehearse``, or listed; published pairs on a GPU."""

import json
import re
import shutil
import sqlite3
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from spec_bench.jobs.config.compose import (
    register_config_plugins,
    split_swept_values,
    to_hydra_arguments,
)
from spec_bench.jobs.config.flags import FLAGS
from spec_bench.settings.configs import get_conf_dir
from spec_bench.tasks.source import EMBEDDED_SAMPLES
from tests import warm
from tests.printed import (
    ROOT,
    Command,
    appended,
    made,
    of_the_report,
    printed,
    printed_blocks,
    printed_commands,
    published_pairs,
)

_BY_REASON = yaml.safe_load(Path(__file__).with_name("not_run.yaml").read_text())
LISTED = {text: reason for reason, texts in _BY_REASON.items() for text in texts}
MOST = 50  # commands in that list: it only gets shorter
OURS = ("make", "spec-bench", "python", "torchrun", "accelerate")
REPORTS = ("list", "ls", "table", "figure", "page", "check claims")
OTHER_PACKAGES = ("decoder=comb", "decoder=mine", "hydra/launcher=ray_cluster")
MEASURED = "today-drafters"  # what NAME stands for
FILE = "question.jsonl"  # Spec-Bench's, which is on no hub
HUB = {pair["name"]: pair["target"] for pair in published_pairs()}


def reports(command):
    """Whether it reads rows and decodes nothing."""
    shown = command.words[0] == "make" and command.words[1] in REPORTS
    return shown or command.kind in REPORTS or command.kind.partition(" ")[0] == "report"


def of_git(command):
    """Whether the rows that it reads are in git."""
    own = {"default", "served", "--offline"} & {*command.words} or ".jsonl" in command.text
    return reports(command) and not own and "--texts" not in command.words


@cache
def rehearsed():
    return {command.text for command in printed_commands()}


def decodes(command):
    """Whether it is a job of the embedded pair's, or compares or reports what one left."""
    kept = command.kind not in ("", "train", "check decoders") and not of_git(command)
    return kept and command.text not in LISTED and command.text not in rehearsed()


def once(commands):
    return list({command.text: command for command in commands}.values())


ALL = once(command for command in printed() if command.words[0] in OURS)
BLOCKS = {
    f"{block[0].places[0]}:{number}": [command for command in block if decodes(command)]
    for number, block in enumerate(printed_blocks())
    if any(decodes(command) for command in block)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's folder, with the results that are in git."""
    folder = tmp_path_factory.mktemp("checkout")
    others = shutil.ignore_patterns("runs", "*.html", "*.pdf", "*.tex", "train", "family")
    shutil.copytree(ROOT / "results", folder / "results", ignore=others)
    return folder


def run(command, folder, *more):
    ready, of_name = made(command), f"results/embedded/{MEASURED}"
    words = (word.replace("results/NAME", of_name) for word in ready.arguments)
    words = [word.replace("NAME", MEASURED) for word in words]
    status, out, err = warm.run(ready.module, *words, *more, folder=folder)
    assert status == 0, f"{command.places[0]}: {command.text}\n{err[-2000:]}"
    return out


@pytest.mark.parametrize("command", [c for c in ALL if of_git(c)], ids=lambda c: c.text)
def test_a_printed_report_on_rows_in_git_is_made(command, folder):
    assert run(command, folder).strip()


def write_cookbook_files(folder):
    """What its page on files of one's own, and on a chat model, names."""
    (folder / "pairs.csv").write_text("source,reference\nThe boat is red.,Das Boot ist rot.\n")
    news = {"article": ["A storm closed the harbour."], "highlights": ["Harbour closed."]}
    pd.DataFrame(news).to_parquet(folder / "news.parquet")
    asked = {"db_id": "shop", "question": "How many items?", "query": "SELECT count(*) FROM item"}
    (folder / "sql.jsonl").write_text(json.dumps(asked))
    (folder / "databases/shop").mkdir(parents=True)
    with sqlite3.connect(folder / "databases/shop/shop.sqlite") as database:
        database.execute("CREATE TABLE item (name TEXT)")
    (folder / "models").mkdir()
    for name, ours in (("target", "target"), ("draft", "draft_distilled")):
        shutil.copytree(ROOT / "spec_bench/embedded/models" / ours, folder / "models" / name)
    (folder / "chat.jsonl").write_text(json.dumps({"turns": ["What is a harbour?"]}))
    (folder / "template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


@pytest.mark.parametrize("block", BLOCKS)
def test_the_jobs_of_a_block_end_well_one_after_the_other(block, tmp_path):
    lines = (EMBEDDED_SAMPLES / "xsum.jsonl").read_text("utf-8").splitlines()[:6]
    (tmp_path / "my_rows.jsonl").write_text("\n".join(lines))
    texts = {"title": "Boats", "question": "Where?", "answer": "Here.", "reference": "here"}
    asked = [{"question_id": n, "turns": ["Where is the boat?"], **texts} for n in range(6)]
    for name in ("mine", "questions", "answers"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, asked)))
    shutil.copy(ROOT / "tests/metrics/length_ratio.py", tmp_path / "my_score.py")
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("question\nWhere?\n")
    (tmp_path / "my_configs/task").mkdir(parents=True)
    page = (ROOT / "docs/tasks.md").read_text("utf-8")
    (whole,) = re.findall(r"^```yaml\n(defaults: .*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_configs/task/boats.yaml").write_text(whole)
    if "cookbook" in block:
        write_cookbook_files(tmp_path)
    for command in BLOCKS[block]:
        more = appended(command) if command.kind in FLAGS else []
        run(command, tmp_path, *more)


def test_every_printed_command_is_run_here_or_rehearsed_or_listed_with_a_reason():
    texts = {command.text for command in ALL}
    ran = {command.text for command in ALL if of_git(command) or decodes(command)}
    assert texts - ran - rehearsed() - {*LISTED} == set()
    assert {*LISTED} - texts == set(), "printed no more"
    assert {*LISTED} & (ran | rehearsed()) == set(), "run by now"
    assert len(LISTED) <= MOST


def results_of(command):
    told = [word for word in command.overrides if "=" in word and not word.startswith("-")]
    told += ["experiment=recommend"] if command.kind == "recommend" else []
    swept = [re.sub(r"^([\w./]+=[^\[{',]*),.*", r"\1", word) for word in told]
    name = "train" if command.trains else "config"
    config = compose(name, overrides=to_hydra_arguments(swept))
    return f"{config.results}/{config.name}"


@pytest.mark.parametrize("step", [5, 1])
def test_every_printed_job_composes_and_writes_nothing_where_git_keeps_results(step):
    ignored = (ROOT / ".gitignore").read_text("utf-8")
    kept = re.findall(r"^!(results/.*)/records\.parquet$", ignored, re.MULTILINE)
    assert len(kept) > 3
    GlobalHydra.instance().clear()
    register_config_plugins()
    jobs = [each for each in ALL if each.kind in FLAGS]
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        for command in jobs[::step]:
            elsewhere = {*OTHER_PACKAGES, "--config-dir"} & {*command.words}
            if command.settings and not elsewhere:
                place = results_of(command)
                assert not any(fnmatch(place, each) for each in kept), command.text


@pytest.mark.parametrize("step", [9, 1])
def test_what_is_printed_on_published_pairs_measures_published_data_on_a_gpu(step):
    reported = [Command(text, ()) for text in sorted({text for _, text in of_the_report()})]
    assert len(reported) > 80
    GlobalHydra.instance().clear()
    register_config_plugins()
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        for command in reported[::step]:
            words = [word for word in command.first_job().overrides if "=" in word]
            name = "train" if command.trains else "config"
            config = compose(name, overrides=to_hydra_arguments(words))
            found = (config.engine.device, config.engine.compile, config.pair.target)
            assert found == ("cuda", "static", HUB[config.pair.name]), command.text
            if not command.trains:
                task, source = config.task, config.task.source
                own = source.kind == "local" and (task.name, source.path) == ("spec_bench", FILE)
                assert source.kind in ("hub", "wheel") or own, command.text
                assert task.overlong in ("skip", "truncate"), command.text  # one ends no sweep
    named = [each for each in printed_commands() if {*HUB} & {*each.pairs}]
    assert len(named) > 100
    on_gpu = ("engine=cuda", "engine.device=cuda")
    assert [each.text for each in named if not {*each.overrides}.intersection(on_gpu)] == []


def test_cfg_job_shows_the_first_job_of_a_sweep(tmp_path):
    words = ["-m", "rsd=exp1", "pair=opt_13b,llama2_7b", "engine=cuda", "task=xsum,dolly"]
    status, out, error = warm.run("spec_bench", *words, "--cfg", "job", folder=tmp_path)
    assert status == 0, error
    shown = yaml.safe_load(out)
    assert (shown["pair"]["name"], shown["task"]["name"]) == ("opt_13b", "xsum")
    assert (shown["task"]["source"]["kind"], shown["engine"]["device"]) == ("hub", "cuda")


def test_lists_and_quoted_texts_are_no_sweep():
    for word in ("cells=[sd:3,rsd_s:4x3]", "task.template='a, b'"):
        assert split_swept_values(word) == [word]
    assert split_swept_values("seed=2,1") == ["seed=2", "seed=1"]
