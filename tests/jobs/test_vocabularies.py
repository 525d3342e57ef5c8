"""Tokens that exist, tokens that are embedded: padding on either side does no harm."""

import pytest

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec
from spec_bench.jobs.config.pair import Pair
from spec_bench.jobs.work.models import models_of
from spec_bench.records.types import Request
from tests.families import decoder_settings
from tests.kinds import tiny_module
from tests.said import naming


@pytest.fixture
def pair(tmp_path):
    """A target that embeds 60 tokens and a draft that embeds 64."""
    for name, rows in (("target", 60), ("draft", 64)):
        tiny_module("llama", vocab_size=rows).float().save_pretrained(tmp_path / name)
    paths = [str(tmp_path / name) for name in ("target", "draft")]
    specs = tuple(ModelSpec(path) for path in paths)
    return Pair("tiny", paths[0], (paths[1],), specs, (None, None))


@pytest.mark.parametrize(("tokens", "used"), [(57, 57), (60, 60), (61, 60), (100, 60)])
def test_a_pair_uses_the_tokens_that_both_models_embed_and_the_tokenizer_has(pair, tokens, used):
    target, draft = models_of(pair, tokens)
    assert target.vocab_size == draft.vocab_size == used
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    assert len(decoder.generate([Request("p", (3, 1, 4), 8)], 0)[0].tokens) == 8


def test_a_shared_model_is_not_cut_for_the_next_pair(pair):
    assert models_of(pair, 50)[0].vocab_size == 50
    assert models_of(pair, 60)[0].vocab_size == 60


def test_a_prompt_with_a_token_that_is_not_embedded_is_refused_by_name(pair):
    target, draft = models_of(pair, 61)
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    with pytest.raises(ValueError, match=naming("p7", "token 60", "0 to 59")):
        decoder.generate([Request("p7", (3, 60), 8)], 0)
