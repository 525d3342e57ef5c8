"""An endpoint of our own on 127.0.0.1 that speaks chat completions, with failures on demand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.listening import listening

KEY = "sk-not-to-be-written-anywhere-4711"

# A status and the headers or the text that go with it, or seconds to stay silent.
Reply = tuple[int, Any]


@dataclass
class Judge:
    """What the endpoint answers, and what it was asked.

    Attributes:
        script: replies to the first requests, in order; after them ``reply`` is what it says.
        reply: the text of an answer, from the request's body.
        bodies: of the requests so far.
        keys: their ``Authorization`` headers.
        raw: sent in place of any reply, part by part, as it is.
    """

    script: list[Reply] = field(default_factory=list)
    reply: Callable[[dict[str, Any]], str] = lambda body: "Good. Rating: [[7]]"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""
    raw: Iterable[bytes] | None = None


@contextmanager
def serving(judge: Judge) -> Iterator[Judge]:
    """Serves until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            judge.bodies.append(body)
            judge.keys.append(self.headers["Authorization"])
            if judge.raw is not None:
                with suppress(OSError):
                    for part in judge.raw:
                        self.wfile.write(part)
                        self.wfile.flush()
                self.close_connection = True
                return
            status, extra = judge.script.pop(0) if judge.script else (200, judge.reply(body))
            if status == 0:
                time.sleep(extra)
                return
            content, headers = {"error": "injected"}, {}
            if status == 200:
                content = {"choices": [{"message": {"role": "assistant", "content": extra}}]}
            elif isinstance(extra, dict):
                headers = extra
            elif extra:
                content = {"error": extra}
            data = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with listening(Handler) as judge.url:
        yield judge
