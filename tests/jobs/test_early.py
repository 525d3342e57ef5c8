"""What cannot be right is refused in one line before torch, transformers or weights are loaded."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spec_bench
from spec_bench.engine.vocabularies import refuse_different_files
from spec_bench.jobs.config.early import read_positions
from spec_bench.jobs.config.overlong import refuse_surely_overlong
from spec_bench.jobs.config.pair import PairSettings
from spec_bench.jobs.config.rehearsal import refuse_before_torch
from spec_bench.tasks import Example, build_task
from tests.said import naming

MODELS = Path(spec_bench.__file__).parent / "embedded" / "models"
SECONDS = 3  # of the processor, for a command that cannot be right
LIGHT = """
import sys
from spec_bench.__main__ import main
sys.argv = ["spec_bench", *{arguments}]
try:
    main()
except SystemExit as stopped:
    assert stopped.code == 2, stopped.code
assert not {{"torch", "transformers"}} & {{*sys.modules}}
"""


@pytest.fixture
def swapped(tmp_path: Path) -> Path:
    """A draft that has two ids the other way round; its weights are missing."""
    folder = tmp_path / "swapped"
    shutil.copytree(MODELS / "draft", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    file = folder / "tokenizer.json"
    read = json.loads(file.read_text())
    vocab = read["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.get)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(read))
    return folder


def test_folders_with_equal_vocabularies_are_accepted_and_others_named(swapped: Path) -> None:
    refuse_different_files(MODELS / "target", MODELS / "draft")
    with pytest.raises(ValueError, match=naming("vocabularies differ", "token")):
        refuse_different_files(MODELS / "target", swapped)


def test_a_special_token_that_loading_may_add_is_left_to_the_loaded_tokenizers(
    tmp_path: Path,
) -> None:
    for name, vocab in (("a", {"x": 0}), ("b", {"x": 0, "<pad>": 1})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
        settings = json.dumps({"pad_token": "<pad>"})
        (tmp_path / name / "tokenizer_config.json").write_text(settings)
    refuse_different_files(tmp_path / "a", tmp_path / "b")


def test_positions_are_read_from_the_config_alone(tmp_path: Path) -> None:
    assert read_positions(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 7}}')
    assert read_positions(str(tmp_path)) == 7


def refused(arguments: list[str], folder: Path) -> str:
    """What a command that cannot be right says, in a process of its own."""
    code = LIGHT.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["task=jsonl", "task.source.path=/nowhere/q.jsonl"], "/nowhere/q.jsonl"),
        (["cells=[sd:4x3]"], "spec '4x3'"),
        (["-m", "seed=0,1,x", "cells=[sd:3],[sd:4]"], "got 'x' (in seed=x cells=[sd\\:3])"),
    ],
    ids=str,
)
def test_a_wrong_file_and_a_wrong_tree_are_refused_without_torch(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    assert said in refused(arguments, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cells=[sdd:3]"], "unknown decoder 'sdd'"),
        (["pair.draft=/no/such"], "/no/such"),
        (["pair.draft=swapped"], "vocabularies differ"),
        (["generation.max_new_tokens=100000"], "leaves no room"),
        (["cells=[{decoder: sd, verifier: {rule: bogus}}]"], "verifier.rule"),
        (["cells=[{decoder: rsd_s, tree: {widht: 3}}]"], "tree.widht"),
        (["cells=[{decoder: rsd_s, drafter: lookup}]"], "does not go with"),
        (["cells=[sd:3]", "pair.draft=null"], "1 drafts"),
        (["cells=[medusa]", "pair.heads=null"], "pair.heads.medusa"),
        (["task=jsonl", "task.source.path=long.jsonl"], "task.overlong=skip"),
        (["pair.heads.medusa=broken"], "cannot read 'broken/config.json'"),
        (["-m", "cells=[sd:3],[sd:x]"], "spec 'x'"),
        (["-m", "pair=embedded,nope"], "'nope'"),
        (["-m", "task=xsum,jsonl", "task.source.path=missing.jsonl"], "'missing.jsonl'"),
    ],
    ids=str,
)
def test_wrong_commands_take_few_seconds_of_the_processor(
    arguments: list[str], said: str, tmp_path: Path, swapped: Path
) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "the cat " * 4000}))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = [each.replace("=swapped", f"={swapped}") for each in arguments]
    assert said in refused(arguments, tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS


EVERY = """
import sys
from functools import partial
from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import build_cells, load_decoder
from spec_bench.settings.configs import conf_dirs
from spec_bench.system.stand_in import stand_in_for

stand_in_for(("torch", "transformers", "safetensors"))
folders = conf_dirs()
load = partial(load_decoder, folders)
names = sorted(file.stem for file in folders[0].glob("decoder/*.yaml"))
print(len(build_cells({}, None, names, load, SamplingSettings())), len(names))
"""


def test_every_decoder_is_read_where_torch_is_only_stood_in_for() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read, known = map(int, done.stdout.split())
    assert read == known


def test_what_computes_with_a_stand_in_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise ValueError("ünï")

    def computes() -> None:
        import torch

        raise ValueError(torch.ones(3).sum() > 2)

    for module in [each for each in sys.modules if each.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    refuse_before_torch(computes)
    refuse_before_torch(lambda: None)
    with pytest.raises(ValueError, match="ünï"):
        refuse_before_torch(refuses)
    assert "torch" not in sys.modules


def test_prompts_surely_longer_than_the_room_are_named_with_the_ways_out() -> None:
    task = build_task({"name": "t", "source": {"kind": "local"}, "template": "{q}"})
    fits, over = (
        Example(name, ("the cat " * count,), ((),)) for name, count in [("a", 9), ("b", 4000)]
    )
    pair = PairSettings(target="embedded:target", draft=None)
    refuse_surely_overlong(pair, task, [fits], 8)
    with pytest.raises(
        ValueError, match=naming("1 of 2 prompts", "'b' has", "1024 positions", "overlong=skip")
    ):
        refuse_surely_overlong(pair, task, [fits, over], 8)


RIGHT = [
    "ar,sd:3,spectr:4x3,specinfer:2-2-2,mcsd:4-1-1,mcsd_wor:4-1-1,mcns:4-1-1,rsd_c:2-2-2,rsd_s:4x3",
    "block:3,traversal,optimal,top_and_sample,opt_tree,dyspec,sd_dynamic,traversal_paths",
    "prompt_lookup,lookup_vote,suffix_lookup,lookup_or_draft,hf_generate,hf_assisted:3",
    "medusa,medusa_typical,redrafter:8x5,redrafter_typical:8x5,eagle,eagle2,eagle3,eagle_rsd_s",
    "beam_search:4,dsbd:4x2@0.9,dsbd_one_cache",
]


@pytest.mark.slow
@pytest.mark.parametrize("cells", RIGHT)
def test_what_is_right_is_not_refused_while_torch_is_stood_in_for(
    cells: str, tmp_path: Path
) -> None:
    """In an interpreter of its own, or torch would be here."""
    command = [sys.executable, "-m", "spec_bench", f"cells=[{cells}]", "prompts=2", "plan=true"]
    done = subprocess.run(
        [*command, f"results={tmp_path}"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, done.stderr), done.stderr[-2000:]
    assert all(cell.partition(":")[0] in done.stdout for cell in cells.split(","))
