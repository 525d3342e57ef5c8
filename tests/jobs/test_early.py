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
from tests.said import naming

MODELS = Path(spec_bench.__file__).parent / "embedded" / "models"
LIGHT = """
import sys
from spec_bench.__main__ import main
sys.argv = ["spec_bench", *{arguments}]
try:
    main()
except SystemExit as stopped:
    assert stopped.code == 2, stopped.code
assert "transformers" not in sys.modules
assert {torch} or "torch" not in sys.modules
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


def refused(arguments: list[str], folder: Path, torch: bool) -> str:
    """What a command that cannot be right says, in a process of its own."""
    code = LIGHT.format(arguments=arguments, torch=torch)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_a_missing_file_is_refused_without_torch(tmp_path: Path) -> None:
    said = refused(["task=jsonl", "task.source.path=/nowhere/q.jsonl"], tmp_path, torch=False)
    assert "/nowhere/q.jsonl" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "torch", "said"),
    [
        (["cells=[sdd:3]"], False, "unknown decoder 'sdd'"),
        (["pair.draft=/no/such"], False, "/no/such"),
        (["pair.draft=swapped"], False, "vocabularies differ"),
        (["generation.max_new_tokens=100000"], False, "leaves no room"),
        (["cells=[sd:4x3]"], True, "spec '4x3'"),
        (["cells=[{decoder: sd, verifier: {rule: bogus}}]"], True, "verifier.rule"),
        (["cells=[sd:3]", "pair.draft=null"], True, "1 drafts"),
    ],
    ids=str,
)
def test_wrong_commands_take_few_seconds_of_the_processor(
    arguments: list[str], torch: bool, said: str, tmp_path: Path, swapped: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    arguments = [each.replace("=swapped", f"={swapped}") for each in arguments]
    assert said in refused(arguments, tmp_path, torch)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert spent < (8 if torch else 4), spent
