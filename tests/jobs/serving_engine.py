"""A server to start: ``python -m tests.jobs.serving_engine PORT NAME [HOW ...]``.

``silent`` never listens, ``broken`` ends at once, ``speculates`` sends several tokens a call,
``slow`` takes 0.05 s a call, ``mortal`` ends while it answers its third request.
"""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ASKED = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        said = {"/health": "", "/v1/models": json.dumps({"data": [{"id": sys.argv[2]}]})}
        self.send_response(200 if self.path in said else 404)
        self.end_headers()
        self.wfile.write(said.get(self.path, "").encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ASKED.append(body["model"])
        print("asked as", body["model"], flush=True)
        if "mortal" in sys.argv and len(ASKED) == 3:
            print("out of memory", flush=True)
            os._exit(7)
        tokens = list(range(5, 5 + body["max_tokens"]))
        fast = "speculates" in sys.argv
        steps = [tokens[:1], tokens[1:]] if fast else [[token] for token in tokens]
        self.send_response(200)
        self.end_headers()
        for place, step in enumerate(each for each in steps if each):
            finish = "length" if sum(map(len, steps[: place + 1])) == len(tokens) else None
            event = {"choices": [{"token_ids": step, "text": "x", "finish_reason": finish}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(0.05 * ("slow" in sys.argv))
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, *_):
        pass


def main():
    print("starting", os.getpid(), flush=True)
    if "broken" in sys.argv:
        print("no such model\n  See https://errors.pydantic.dev/2/v", flush=True)
        os.abort()
    # A child of its own, as engines have, that would outlive it.
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    if folder := os.environ.get("PIDS"):
        (Path(folder) / f"{os.getpid()}").write_text(f"{os.getpid()} {child.pid}")
    if "silent" not in sys.argv:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    child.wait()


if __name__ == "__main__":
    main()
