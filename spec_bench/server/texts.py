"""An answer that came as text alone, in tokens: the target's tokenizer reads it again. Pure.

The tokens may be others than the server's, though they say the same, so that counts of tokens are
near and not exact. A chunk has as many as the text gains with it; one that gains none, such as half
a letter, goes with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spec_bench.server.stream import BadStreamError, Chunk, Served

Tokenise = Callable[[str], Sequence[int]]


def in_tokens(served: Served, tokenise: Tokenise, stop_ids: Sequence[int]) -> Served:
    """The answer with token ids.

    Args:
        served: chunks of text.
        tokenise: gives a text's ids, none added.
        stop_ids: tokens that end an answer. Where the server counts one token more than the text
            has and says that it stopped, the first of them, which is no text, is that one.

    Raises:
        BadStreamError: the text has no token.
    """
    text, lengths = "", list[int]()
    for chunk in served.chunks:
        text += chunk.text
        lengths.append(len(tokenise(text)))
    ids = list(tokenise(text))
    if not ids:
        raise BadStreamError("an answer without a token")
    counted = served.usage.get("completion_tokens")
    if served.finish == "stop" and stop_ids and counted == len(ids) + 1:
        ids.append(stop_ids[0])
    lengths[-1] = len(ids)
    chunks, before = list[Chunk](), 0
    for chunk, length in zip(served.chunks, lengths, strict=True):
        upto = min(length, len(ids))
        if upto > before:
            chunks.append(Chunk(chunk.seconds, tuple(ids[before:upto])))
            before = upto
    return replace(served, chunks=tuple(chunks))
