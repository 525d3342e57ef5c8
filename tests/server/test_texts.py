"""Answers that came as text: tokens again, by chunk."""

import pytest

from spec_bench.server.stream import BadStreamError, Chunk, Served, in_tokens


def tokenise(text):
    """A letter a token, but for "th"."""
    return [ord(each) for each in text.replace("th", "T")]


def came(*texts, finish="length", counted=None):
    chunks = tuple(Chunk(float(place), (), text) for place, text in enumerate(texts))
    return Served(chunks, finish, {} if counted is None else {"completion_tokens": counted})


def test_a_chunk_has_the_tokens_that_the_text_gains_with_it():
    found = in_tokens(came("a", "bc", "d"), tokenise, ())
    assert [chunk.tokens for chunk in found.chunks] == [(97,), (98, 99), (100,)]
    assert [chunk.seconds for chunk in found.chunks] == [0.0, 1.0, 2.0]


def test_a_chunk_that_completes_a_token_adds_none():
    found = in_tokens(came("at", "h", "e"), tokenise, ())
    assert found.tokens == (97, 84, 101)
    assert [len(chunk.tokens) for chunk in found.chunks] == [2, 1]


def test_the_end_that_is_no_text_is_counted_by_the_server():
    assert in_tokens(came("a", finish="stop", counted=2), tokenise, (2, 9)).tokens == (97, 2)
    assert in_tokens(came("a", finish="stop", counted=1), tokenise, (2, 9)).tokens == (97,)
    assert in_tokens(came("a", counted=2), tokenise, (2,)).tokens == (97,)


def test_a_text_without_a_token_is_no_answer():
    with pytest.raises(BadStreamError, match="without a token"):
        in_tokens(came("x"), lambda _: [], ())
