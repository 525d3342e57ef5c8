"""Encoding with a real tokenizer of the transformers library, built here."""

import pytest

from spec_bench.tasks import build_task

from .conftest import config

TEXT = "Article: A bridge opened.\nSummary:"
CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes as tokens, <s> before a text, and no chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(["<s>", "</s>", *alphabet])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    inner.add_special_tokens(["<s>", "</s>"])
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture
def xsum(tmp_path):
    """The XSum task over one short document, with the ``chat`` setting that is asked for."""
    file = tmp_path / "x.jsonl"
    file.write_text('{"document": "A bridge opened.", "summary": "A bridge."}\n')
    return lambda chat: build_task(config("xsum", kind="local", path=str(file)) | {"chat": chat})


def test_plain_text_follows_one_beginning_of_sequence_token(tokenizer, xsum):
    task = xsum(False)
    ids = task.encode(task.examples()[0], tokenizer)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == TEXT


def test_a_chat_prompt_has_one_beginning_of_sequence_token_too(tokenizer, xsum, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", CHAT)
    task = xsum("auto")
    ids = task.encode(task.examples()[0], tokenizer)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids) == f"<s><user>{TEXT}<assistant>"


def test_auto_without_a_chat_template_is_plain_text(tokenizer, xsum):
    auto, plain = xsum("auto"), xsum(False)
    (example,) = plain.examples()
    assert auto.encode(example, tokenizer) == plain.encode(example, tokenizer)


def test_a_line_break_stops_where_it_is_a_token(tokenizer, xsum):
    line_break = tokenizer("\n", add_special_tokens=False)["input_ids"][0]
    assert xsum(False).stop_ids(tokenizer) == (tokenizer.eos_token_id, line_break)
