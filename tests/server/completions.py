"""A server of completions on 127.0.0.1: token ids over server-sent events, faults on demand."""

import base64
import json
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.listening import listening


@dataclass
class Completions:
    """What the server answers, and what it was asked."""

    answer: Any  # the tokens of each step, from the request's body
    # What to do in place of an answer, for the first requests in order: a status; ``cut`` ends the
    # stream in its middle; ``stall`` sends half and stays silent; ``drip`` sends a byte at a time;
    # ``garbage``, ``html``, ``textual``, ``error``, ``abort``, ``leak`` and ``llama`` send these.
    faults: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)  # sent beside a status
    refusal: str = ""  # more that it says with a status
    bodies: list = field(default_factory=list)  # of the requests so far
    keys: list = field(default_factory=list)  # their ``Authorization`` headers, or None
    url: str = ""  # the base address
    ended: threading.Event = field(default_factory=threading.Event)
    text: Any = None  # what a token says, of a server without ids
    delays: tuple = ()  # seconds before each event of an answer
    told: Any = lambda _: {"steps": 1}  # ``metrics`` with an answer, from its steps
    counters: Any = lambda: ""  # what ``GET /metrics`` says
    room: int = 2**31  # tokens of an answer, at most, whatever was asked for
    most: int = 0  # requests that were under way together, at most
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def prompts(self):
        return [body["prompt"] for body in self.bodies]

    def count(self, step):
        """A request begins, or ends."""
        with self._lock:
            self._now += step
            self.most = max(self.most, self._now)


def cut(steps, most):
    """The first tokens of an answer, in its steps."""
    before = [sum(map(len, steps[:place])) for place in range(len(steps))]
    return [step[: most - n] for step, n in zip(steps, before, strict=True) if n < most]


def events(steps, limit, told, said):
    """The stream of an answer; of a server that knows no token ids where it says texts."""
    count = sum(map(len, steps))
    found = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        finish = ("length" if count >= limit else "stop") if last else None
        means = {"text": said(step)} if said else {"text": "x", "token_ids": list(step)}
        found.append({"choices": [{"index": 0, "finish_reason": finish, **means}]})
    more = {} if said else {"metrics": told}
    found.append({"choices": [], "usage": {"completion_tokens": count}, **more})
    return [*map(data, found), b"data: [DONE]\n\n"]


def data(body):
    return f"data: {json.dumps(body)}\n\n".encode()


def parts_of(fault, stream, key):
    leak = f"bad key {key} \x1b[31mred, {base64.b64encode((key or '').encode()).decode()}"
    abort = {"text": "x", "token_ids": [5, 6], "finish_reason": "abort"}
    llama = {"choices": [{"text": "x", "finish_reason": None}], "timings": {}}
    sent = {
        "cut": stream[: max(1, len(stream) // 2)],
        "garbage": [b"data: {]\n\n"],
        "html": [b"<html>no such page</html>\n"],
        "textual": [data({"choices": [{"text": "a word", "finish_reason": None}]})],
        "error": [data({"error": {"message": "out of\nmemory"}})],
        "abort": [data({"choices": [abort]}) + b"data: [DONE]\n\n"],
        "leak": [data({"error": {"message": leak}})],
        "llama": [data(llama)],
    }
    for part in sent.get(fault, stream):
        for piece in part if fault == "drip" else ():
            yield bytes([piece])
            time.sleep(0.01)
        if fault != "drip":
            yield part


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
                said = f"refused: {self.headers['Authorization']}{completions.refusal}"
                self.wfile.write(said.encode())
                return
            self.send_response(200)
            self.end_headers()
            steps = cut(completions.answer(body), body["max_tokens"])
            limit = min(body["max_tokens"], completions.room)
            stream = events(steps, limit, completions.told(steps), completions.text)
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
