"""What names, ranges, folders and files tell is refused in one line before torch is imported."""

import ast
import json
import resource
import subprocess
import sys

import pytest

from spec_bench.decode.config import resolve_spec
from spec_bench.draft.base import drafter
from spec_bench.jobs.config.config import read_positions
from spec_bench.settings.registry import written
from spec_bench.tree.base import policy
from spec_bench.verify.base import rule

SECONDS = 3  # of the processor, for a command that cannot be right
LIGHT = """
import sys
from spec_bench.__main__ import main
sys.argv = ["spec_bench", *{arguments}]
try:
    main()
except SystemExit as stopped:
    assert stopped.code == {status}, stopped.code
assert not {{"torch", "transformers"}} & {{*sys.modules}}
"""


def test_positions_are_read_from_the_config_alone(tmp_path):
    assert read_positions(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 7}}')
    assert read_positions(str(tmp_path)) == 7


def light(arguments, folder, status=2):
    """A command in a process of its own, which does without torch."""
    code = LIGHT.format(arguments=arguments, status=status)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    return done


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["task=jsonl", "task.source.path=/nowhere/q.jsonl"], "/nowhere/q.jsonl"),
        (["cells=[sd:4x3]"], "spec '4x3'"),
        (["generation.temperature=nan"], "generation.temperature"),
        (["decoder=rsd_x"], "rsd_x"),
        (["-m", "seed=0,1,x", "cells=[sd:3],[sd:4]"], "got 'x' (in seed=x cells=[sd\\:3])"),
        *(
            pytest.param(arguments, said, marks=pytest.mark.slow)
            for arguments, said in [
                (["cells=[sdd:3]"], "unknown decoder 'sdd'"),
                (["generation.top_p=2"], "generation.top_p"),
                (["pair.draft=/no/such"], "/no/such"),
                (["pair.draft_vocabulary=/no/such"], "/no/such"),
                (["generation.max_new_tokens=100000"], "leaves no room"),
                (["cells=[{decoder: sd, verifier: {rule: bogus}}]"], "verifier.rule"),
                (["decoder.tree.policy=forest"], "tree.policy"),
                (["cells=[{decoder: rsd_s, drafter: nobody}]"], "drafter.kind"),
                (["pair.heads.medusa=broken"], "cannot read 'broken/config.json'"),
                (["-m", "cells=[sd:3],[sd:x]"], "spec 'x'"),
                (["-m", "pair=embedded,nope"], "'nope'"),
                (["-m", "task=xsum,jsonl", "task.source.path=missing.jsonl"], "'missing.jsonl'"),
            ]
        ),
    ],
    ids=str,
)
def test_a_wrong_name_range_folder_or_file_is_refused_without_torch(arguments, said, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    told = light(arguments, tmp_path).stderr
    assert said in told and len(told.splitlines()) == 1, told


def test_help_does_without_torch(tmp_path):
    assert "usage: spec-bench" in light(["--help"], tmp_path, status=0).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cells=[{decoder: rsd_s, tree: {widht: 3}}]"], "tree.widht"),
        (["cells=[{decoder: rsd_s, drafter: lookup}]"], "does not go with"),
        (["cells=[sd:3]", "pair.draft=null"], "1 drafts"),
        (["cells=[medusa]", "pair.heads=null"], "pair.heads.medusa"),
        (["task=jsonl", "task.source.path=long.jsonl"], "task.overlong=skip"),
        (["-m", "seed=0,1", "cells=[sd:3],[{decoder: sd, tree: {depth: 0}}]"], "tree.depth"),
    ],
    ids=str,
)
def test_all_else_is_refused_in_a_line_before_a_model_is_loaded(arguments, said, tmp_path):
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "the cat " * 4000}))
    done = subprocess.run(
        [sys.executable, "-m", "spec_bench", *arguments],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2 and "loading" not in done.stdout
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("spec_bench: ")]
    assert said in line
    assert not list(tmp_path.rglob("generations.jsonl"))


@pytest.mark.parametrize(
    ("registry", "package", "decorator"),
    [
        (drafter, "spec_bench.draft", "drafter"),
        (policy, "spec_bench.tree", "policy"),
        (rule, "spec_bench.verify", "rule"),
    ],
)
def test_the_names_that_modules_text_tells_are_those_registered(registry, package, decorator):
    things = {name: getattr(entry, "function", entry) for name, entry in registry.items()}
    ours = {name for name, each in things.items() if each.__module__.startswith("spec_bench.")}
    assert set(written(package, decorator)) == ours


def test_a_policys_forms_are_read_from_its_text_and_no_other_is_taken():
    shorthand = {"root": "-", "number": "3", "levels": "2-2-1", "product": "4x3"}
    for name, facts in written("spec_bench.tree", "policy").items():
        forms = ast.literal_eval(facts["forms"])
        assert forms == tuple(policy[name].forms)
        for form, text in shorthand.items():
            decoder = {"name": "x", "tree": {"policy": name}}
            if form in forms:
                assert resolve_spec(decoder, text)["tree"]
            else:
                with pytest.raises(ValueError, match="does not fit"):
                    resolve_spec(decoder, text)
