"""The stand-in hub's server: reads only, over a folder, on 127.0.0.1.

    with serving(folder) as url: ...  # HF_ENDPOINT=url, a fresh HF_HOME

The variables must be set before anything imports ``huggingface_hub``, which reads them once. Errors
carry the hub's ``X-Error-Code``. There is no search, redirect to large files, history or datasets
server: it shows that code asks for the right things and survives refusals, not that the real
repositories hold what the folder claims.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

from tests.hub.repository import KINDS, WHEN, RefusedError, Repository, oid

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("revision", "tree", "paths-info", "discussions", "commits")


class Server(http.server.ThreadingHTTPServer):
    """Serves a hub's root folder."""

    daemon_threads = True

    def __init__(self, root, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.root = root
        self.asked = []  # status, method and path of every request


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._answer(body)
        except RefusedError as refused:
            status, code, message = refused.args
            extra = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
            self._say({"error": message}, status, extra)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_POST = do_GET  # noqa: N815

    def _answer(self, body):
        address = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(address.query))
        parts = [urllib.parse.unquote(part) for part in address.path.strip("/").split("/")]
        api = parts[0] == "api"
        parts = parts[1:] if api else parts
        named = bool(parts) and parts[0] in KINDS
        kind = parts.pop(0) if named else "models"
        verbs = VERBS if api else ("resolve",)
        found = (i for i in (1, 2) if parts[i : i + 1] and parts[i] in verbs)
        at = next(found, len(parts) if api else 0)
        if at not in (1, 2) or (api and not named):
            raise RefusedError(404, None, "This stand-in for the hub has no such address")
        verb, rest = (parts[at : at + 1] or ["revision"])[0], parts[at + 1 :]
        if rest[:1] == ["refs"]:  # refs/convert/parquet, refs/pr/1: not always quoted
            rest = ["/".join(rest[:3]), *rest[3:]]
        revision, path = rest[0] if rest else None, "/".join(rest[1:])
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        repository = Repository(self.server.root, kind, "/".join(parts[:at]), revision, token)
        if verb == "resolve":
            self._send(repository, path)
        else:
            self._say(_told(repository, verb, path, asked, body))

    def _send(self, repository, path):
        """A file, or the part of it that Range names."""
        file = repository.readable(path)
        size, first, status = file.stat().st_size, 0, 200
        end = size
        headers = {"ETag": f'"{oid(file)}"', "X-Repo-Commit": repository.commit}
        headers["Accept-Ranges"] = "bytes"
        if match := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            low, high = match.groups()
            first = int(low) if low else max(0, size - int(high or 0))
            end = min(size, int(high) + 1) if low and high else size
            if first >= size:
                self._say({"error": "range"}, 416, {"Content-Range": f"bytes */{size}"})
                return
            status, headers["Content-Range"] = 206, f"bytes {first}-{end - 1}/{size}"
        headers["Content-Type"], headers["Content-Length"] = "application/octet-stream", end - first
        self._head(status, headers)
        if self.command != "HEAD":
            with file.open("rb") as source:
                source.seek(first)
                self.wfile.write(source.read(end - first))

    def _say(self, value, status=200, headers=None):
        text = json.dumps(value).encode()
        kind = {"Content-Type": "application/json", "Content-Length": len(text)}
        self._head(status, {**(headers or {}), **kind})
        if self.command != "HEAD":
            self.wfile.write(text)

    def _head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def log_request(self, code="-", size="-"):
        self.server.asked.append(f"{int(code)} {self.command} {self.path}")


def _told(repository, verb, path, asked, body):
    """What the hub's API says about a repository."""
    if verb == "revision":
        return repository.info()
    if verb == "tree":
        found = repository.entries(path, asked.get("recursive", "").lower() in ("true", "1"))
        if not found and path:
            raise RefusedError(404, "EntryNotFound", f"Entry not found: {path}")
        return found
    if verb == "paths-info":
        paths = urllib.parse.parse_qs(body.decode()).get("paths", [])
        return [entry for entry in repository.entries() if entry["path"] in paths]
    if verb == "commits":
        told = {"id": repository.commit, "title": "", "message": "", "date": WHEN, "authors": []}
        return [told]
    return {"discussions": [], "count": 0, "start": 0}  # transformers asks for safetensors


@contextlib.contextmanager
def serving(root):
    """Serves the folder from a process of its own; gives the address for HF_ENDPOINT.

    The process ends with this one and all that it forked, however they end.
    """
    command = [sys.executable, "-m", __name__, str(root)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()
            server.terminate()


def main():
    """Serves until standard input ends, having said where."""
    server = Server(Path(sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
