"""Preflight: vocabularies by content, clear errors before anything is decoded."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from spec_bench.engine.loading import ModelSpec, check_vocabularies, load_model
from tests.said import naming


def tokenizer(*pieces):
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token=pieces[0]))
    )


def test_equal_vocabularies_agree_on_their_size():
    assert check_vocabularies(tokenizer("a", "b", "c"), tokenizer("a", "b", "c")) == 3


def test_vocabularies_of_equal_size_and_other_content_are_refused():
    with pytest.raises(ValueError, match=naming("'b'", "id 1 in the target", "2 in the draft")):
        check_vocabularies(tokenizer("a", "b", "c"), tokenizer("a", "c", "b"))


def test_an_unknown_dtype_or_device_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=naming("'int8'", "float32", "bfloat16")):
        ModelSpec("x", dtype="int8")
    with pytest.raises(ValueError, match="'gpu9'"):
        ModelSpec("x", device="gpu9")


def test_a_folder_without_a_model_is_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match="cannot load model") as caught:
        load_model(ModelSpec(str(tmp_path)))
    assert "\n" not in str(caught.value)
