"""A server of completions on 127.0.0.1: token ids over server-sent events, faults on demand."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Sequence
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
            sends a byte at a time; ``garbage``, ``html``, ``textual``, ``error``, ``abort``,
            ``leak`` and ``llama`` send these.
        headers: sent beside a status.
        bodies: of the requests so far.
        keys: their ``Authorization`` headers.
        url: the base address.
        text: what a token says, where answers have no token ids.
        delays: seconds before each event of an answer; none after the last of them.
        told: what is sent as ``metrics`` with an answer's steps.
        counters: what ``GET /metrics`` says.
        room: tokens of an answer, at most, whatever was asked for.
        most: requests that were under way together, at most.
    """

    answer: Callable[[dict[str, Any]], Steps]
    faults: list[int | str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    text: Callable[[Sequence[int]], str] | None = None
    delays: Sequence[float] = ()
    told: Callable[[Steps], dict[str, Any]] = lambda _: {"steps": 1}
    counters: Callable[[], str] = lambda: ""
    room: int = 2**31
    most: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def prompts(self):
        """What was asked, in order."""
        return [body["prompt"] for body in self.bodies]

    def count(self, step):
        """A request begins, or ends."""
        with self._lock:
            self._now += step
            self.most = max(self.most, self._now)


def events(steps, limit, told):
    """The stream of an answer."""
    count = sum(map(len, steps))
    found = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        finish = ("length" if count >= limit else "stop") if last else None
        choice = {"index": 0, "text": "x", "token_ids": list(step), "finish_reason": finish}
        found.append({"choices": [choice]})
    found.append({"choices": [], "usage": {"completion_tokens": count}, "metrics": told})
    return [f"data: {json.dumps(each)}\n\n".encode() for each in found] + [b"data: [DONE]\n\n"]


def texts(steps, limit, said):
    """The stream of a server that knows no token ids."""
    count = sum(map(len, steps))
    finish = "length" if count >= limit else "stop"
    ends = [*[None] * (len(steps) - 1), finish]
    found = [
        {"choices": [{"text": said(step), "finish_reason": end}]}
        for step, end in zip(steps, ends, strict=True)
    ]
    found.append({"choices": [], "usage": {"completion_tokens": count}})
    return [f"data: {json.dumps(each)}\n\n".encode() for each in found] + [b"data: [DONE]\n\n"]


def parts_of(fault, stream, key):
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
    elif fault == "abort":
        choice = {"text": "x", "token_ids": [5, 6], "finish_reason": "abort"}
        yield f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()
    elif fault == "leak":
        message = f"bad key {key} \x1b[31mred, {base64.b64encode((key or '').encode()).decode()}"
        yield f"data: {json.dumps({'error': {'message': message}})}\n\n".encode()
    elif fault == "llama":
        choice = {"text": "x", "finish_reason": None}
        yield f"data: {json.dumps({'choices': [choice], 'timings': {}})}\n\n".encode()
    else:
        yield from stream


@contextmanager
def serving(completions):
    """Serves until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            said = {"/metrics": completions.counters(), "/version": '{"version": "1.2"}'}
            self.send_response(200 if self.path in said else 404)
            self.end_headers()
            self.wfile.write(said.get(self.path, "").encode())

        def do_POST(self):
            completions.count(1)
            try:
                self.answer()
            finally:
                completions.count(-1)

        def answer(self):
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
            steps = completions.answer(body)
            limit = min(body["max_tokens"], completions.room)
            stream = events(steps, limit, completions.told(steps))
            if completions.text:
                stream = texts(steps, limit, completions.text)
            with suppress(OSError):
                for place, part in enumerate(parts_of(fault, stream, completions.keys[-1])):
                    time.sleep(dict(enumerate(completions.delays)).get(place, 0.0))
                    self.wfile.write(part)
                    self.wfile.flush()
                    if fault == "stall":
                        completions.ended.wait(20)

        def log_message(self, *_):
            pass

    with listening(Handler) as completions.url:
        try:
            yield completions
        finally:
            completions.ended.set()
