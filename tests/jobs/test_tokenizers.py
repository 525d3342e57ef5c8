"""Where a pair's tokens are told, and which exist where models embed other numbers of them."""

import io
import shutil

import pytest
import sentencepiece

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec
from spec_bench.jobs.config.pair import Pair
from spec_bench.jobs.work.models import models_of
from spec_bench.records.types import Request
from tests.families import decoder_settings
from tests.jobs.tiny import TEXTS, make_family
from tests.kinds import tiny_module
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


@pytest.fixture
def padded(tmp_path):
    """A target that embeds 60 tokens and a draft that embeds 64."""
    for name, rows in (("target", 60), ("draft", 64)):
        tiny_module("llama", vocab_size=rows).float().save_pretrained(tmp_path / name)
    paths = [str(tmp_path / name) for name in ("target", "draft")]
    specs = tuple(ModelSpec(path) for path in paths)
    return Pair("tiny", paths[0], (paths[1],), specs, (None, None))


@pytest.mark.parametrize(("tokens", "used"), [(57, 57), (60, 60), (61, 60), (100, 60)])
def test_a_pair_uses_the_tokens_that_both_models_embed_and_the_tokenizer_has(padded, tokens, used):
    target, draft = models_of(padded, tokens)
    assert target.vocab_size == draft.vocab_size == used
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    assert len(decoder.generate([Request("p", (3, 1, 4), 8)], 0)[0].tokens) == 8


def test_a_shared_model_is_not_cut_for_the_next_pair(padded):
    assert models_of(padded, 50)[0].vocab_size == 50
    assert models_of(padded, 60)[0].vocab_size == 60


def test_a_prompt_with_a_token_that_is_not_embedded_is_refused_by_name(padded):
    target, draft = models_of(padded, 61)
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    with pytest.raises(ValueError, match=naming("p7", "token 60", "0 to 59")):
        decoder.generate([Request("p7", (3, 60), 8)], 0)
