"""What printed commands compose to: published models and data, on a GPU; nothing is fetched."""

from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir

from spec_bench.jobs.config.compose import recipe_arguments, register, shown_resolved
from spec_bench.report.papers.paper import find_table, load_paper, paper_names
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import list_paper
from spec_bench.settings.configs import conf_dir
from tests import warm
from tests.printed import BEGIN, Command, published_pairs

TABLES = ("rsd/1", "rsd/7", "mcsd/1", "mcsd/4", "dsbd/1", "redrafter/1")
FILE = "question.jsonl"  # Spec-Bench's, which is on no hub
HUB = {pair["name"]: pair["target"] for pair in published_pairs()}


def composed(command):
    register()
    words = [word for word in command.first_job().arguments if word not in ("-m", "fit_tree")]
    name = "train" if command.trains else "config"
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose(name, overrides=recipe_arguments(words))


def assert_measures_what_is_published_on_a_gpu(command):
    config = composed(command)
    assert config.engine.device == "cuda", command.text
    assert config.engine.compile == "static", command.text
    assert config.pair.target == HUB[config.pair.name], command.text
    if not command.trains:
        source = config.task.source
        own = source.kind == "local" and source.path == FILE
        assert source.kind in ("hub", "wheel") or (own and config.task.name == "spec_bench"), (
            command.text
        )
        # A long article ends no sweep.
        assert config.task.overlong in ("skip", "truncate"), command.text


@pytest.mark.parametrize("paper", paper_names())
def test_listed_commands_decode_published_data_with_published_models_on_a_gpu(paper):
    text = list_paper(load_paper(paper), Measured.below(Path("no such folder")))
    commands = [Command(line.strip(), ()) for line in text.splitlines() if line.startswith("    ")]
    own = [each for each in commands if each.text.startswith(BEGIN)]
    assert own
    for command in own:
        assert_measures_what_is_published_on_a_gpu(command)


@pytest.mark.parametrize("name", TABLES)
def test_commands_under_a_table_do_so_too(name):
    found = build_table(find_table(name), Measured.below(Path("no such folder"))).commands
    assert found
    for text in found:
        assert_measures_what_is_published_on_a_gpu(Command(text, ()))


def test_cfg_job_shows_the_first_job_of_a_sweep(tmp_path):
    words = ["-m", "rsd=exp1", "pair=opt_13b,llama2_7b", "engine=cuda", "task=xsum,dolly"]
    status, out, error = warm.run("spec_bench", *words, "--cfg", "job", folder=tmp_path)
    assert status == 0, error
    shown = yaml.safe_load(out)
    assert (shown["pair"]["name"], shown["task"]["name"]) == ("opt_13b", "xsum")
    assert (shown["task"]["source"]["kind"], shown["engine"]["device"]) == ("hub", "cuda")


def test_lists_and_quoted_texts_are_no_sweep():
    listed = ["cells=[sd:3,rsd_s:4x3]", "task.template='a, b'"]
    given = ["x", "-m", *listed, "seed=2,1", "--cfg", "job"]
    assert shown_resolved(given) == ["x", *listed, "seed=2", "--cfg", "job", "--resolve"]
    assert shown_resolved(given[:5]) == given[:5]
