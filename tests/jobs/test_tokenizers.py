"""Where a pair's tokens are told: in the target's folder, in sentencepiece's file, or elsewhere."""

import io
import shutil

import pytest
import sentencepiece

from tests.jobs.tiny import TEXTS, make_family
from tests.said import naming

CELLS = ("cells=[sd:3]", "warmup=0", "prompts=1")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The tiny family without tokenizers, and a tokenizer.model in a folder ``tokens``."""
    folder = tmp_path_factory.mktemp("bare")
    make_family(folder)
    for file in folder.glob("*/*token*"):
        file.unlink()
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, vocab_size=80, model_type="bpe"
    )
    (folder / "tokens").mkdir()
    shutil.copy(folder / "target" / "config.json", folder / "tokens")
    (folder / "tokens" / "tokenizer.model").write_bytes(written.getvalue())
    return folder


def pair(folder):
    return (f"pair.target={folder / 'target'}", f"pair.draft={folder / 'draft'}", *CELLS)


def test_a_folder_with_tokenizer_model_alone_is_decoded(run_job, bare, tmp_path):
    for name in ("target", "draft"):
        shutil.copytree(bare / name, tmp_path / name)
        shutil.copy(bare / "tokens" / "tokenizer.model", tmp_path / name)
    results = run_job(*pair(tmp_path))
    assert [each.status for each in results] == ["complete", "complete"]


def test_a_pairs_own_tokenizer_serves_models_that_have_none(run_job, bare):
    with pytest.raises(ValueError, match=naming("tokenizer", bare / "target")):
        run_job(*pair(bare))
    results = run_job(*pair(bare), f"pair.tokenizer={bare / 'tokens'}")
    assert [each.status for each in results] == ["complete", "complete"]


@pytest.mark.parametrize("data", [b"", b"half", b"\0" * 500])
def test_a_tokenizer_that_is_damaged_is_one_line(run_job, bare, tmp_path, data):
    shutil.copytree(bare / "tokens", tmp_path / "tokens")
    (tmp_path / "tokens" / "tokenizer.model").write_bytes(data)
    with pytest.raises(ValueError, match=naming("tokenizer", tmp_path / "tokens")) as raised:
        run_job(*pair(bare), f"pair.tokenizer={tmp_path / 'tokens'}")
    assert "\n" not in str(raised.value)
