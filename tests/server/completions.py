"""A server of completions on 127.0.0.1: token ids over server-sent events, faults on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.listening import listening

Steps = Sequence[Sequence[int]]


@dataclass
class Completions:
    """What the server answers, and what it was asked.

    Attributes:
        answer: the tokens of each step, from the request's body.
        faults: what to do in place of an answer, for the first requests in order: a status;
            ``cut`` ends the stream in its middle; ``stall`` sends half and stays silent; ``drip``
            sends a byte at a time; ``garbage``, ``html``, ``textual``, ``error`` send these.
        headers: sent beside a status.
        bodies: of the requests so far.
        keys: their ``Authorization`` headers.
        url: the base address.
    """

    answer: Callable[[dict[str, Any]], Steps]
    faults: list[int | str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


def events(steps: Steps, limit: int) -> list[bytes]:
    """The stream of an answer."""
    count = sum(map(len, steps))
    found = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        finish = ("length" if count >= limit else "stop") if last else None
        choice = {"index": 0, "text": "x", "token_ids": list(step), "finish_reason": finish}
        found.append({"choices": [choice]})
    found.append({"choices": [], "usage": {"completion_tokens": count}, "metrics": {"steps": 1}})
    return [f"data: {json.dumps(each)}\n\n".encode() for each in found] + [b"data: [DONE]\n\n"]


def parts_of(fault: int | str | None, stream: list[bytes]) -> Iterator[bytes]:
    """What is sent, part by part."""
    half = stream[: max(1, len(stream) // 2)]
    if fault == "cut":
        yield from half
    elif fault == "drip":
        for byte in b"".join(stream):
            yield bytes([byte])
            time.sleep(0.01)
    elif fault == "garbage":
        yield b"data: {]\n\n"
    elif fault == "html":
        yield b"<html>no such page</html>\n"
    elif fault == "textual":
        yield b'data: {"choices": [{"text": "a word", "finish_reason": null}]}\n\n'
    elif fault == "error":
        yield b'data: {"error": {"message": "out of\\nmemory"}}\n\n'
    else:
        yield from stream


@contextmanager
def serving(completions: Completions) -> Iterator[Completions]:
    """Serves until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            completions.bodies.append(body)
            completions.keys.append(self.headers["Authorization"])
            fault = completions.faults.pop(0) if completions.faults else None
            self.close_connection = True
            if isinstance(fault, int):
                self.send_response(fault)
                for name, value in completions.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(f"refused: {self.headers['Authorization']}".encode())
                return
            self.send_response(200)
            self.end_headers()
            stream = events(completions.answer(body), body["max_tokens"])
            with suppress(OSError):
                for part in parts_of(fault, stream):
                    self.wfile.write(part)
                    self.wfile.flush()
                    if fault == "stall":
                        completions.ended.wait(20)

        def log_message(self, *_: Any) -> None:
            pass

    with listening(Handler) as completions.url:
        try:
            yield completions
        finally:
            completions.ended.set()
