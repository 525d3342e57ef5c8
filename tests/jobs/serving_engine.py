"""A server to start: ``python -m tests.jobs.serving_engine PORT [silent|broken|speculates]``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = list(range(5, 5 + body["max_tokens"]))
        fast = "speculates" in sys.argv
        steps = [tokens[:1], tokens[1:]] if fast else [[token] for token in tokens]
        self.send_response(200)
        self.end_headers()
        for place, step in enumerate(each for each in steps if each):
            finish = "length" if sum(map(len, steps[: place + 1])) == len(tokens) else None
            event = {"choices": [{"token_ids": step, "text": "x", "finish_reason": finish}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    print("starting", os.getpid(), flush=True)
    if "broken" in sys.argv:
        sys.exit("no such model")
    # A child of its own, as engines have, that would outlive it.
    child = subprocess.Popen(["sleep", "600"])
    if folder := os.environ.get("PIDS"):
        (Path(folder) / f"{os.getpid()}").write_text(f"{os.getpid()} {child.pid}")
    if "silent" not in sys.argv:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    child.wait()


if __name__ == "__main__":
    main()
