"""Is each fault of a server refused in one line, or without effect, in little memory?

    python scripts/check/server_faults.py [--only usage] [--out server-faults.md]

A server on this machine answers one prompt with a fault: chunks lost or sent twice, counts that are
others, huge or none, another model, other types, depths and sizes, streams without an end, other
statuses with the key in them, TLS that cannot be trusted. A process of its own asks each time; the
memory is what it takes at most beside what it had before. "No effect": the same tokens in the same
calls as without the fault. Exit status 1 where a fault did anything else, a line is none, a key is
in it, or more than 256 MiB were taken.
"""

import argparse
import base64
import gzip
import json
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import Request
from spec_bench.server.decoder import RequestOptions, ServedDecoder
from spec_bench.server.endpoint import ServerClient
from spec_bench.system.files import write_text

KEY = "sk-live-4fQ9zT7mXw2Lr8Vd1Bn6"
MOST_MIB = 256
LONG_S = 3.0  # that an answer may take
STEPS = ((5,), (6, 7, 8), (9,))
COUNTS = {"per_step_accepted": [2, 0], "per_step_drafted": [2, 2]}
HUGE = 10**9
Events = list[dict[str, Any]]
Write = Callable[[bytes], object]


@dataclass(frozen=True)
class Fault:
    """What a server does wrong."""

    name: str
    body: Callable[[], Iterator[bytes]]  # of its answer
    status: int = 200
    headers: Mapping[str, str] | None = None
    kind: str = "openai"  # as which it is asked, or ``text`` for an answer without ids
    counters: tuple[bytes, bytes] = (b"", b"")  # what ``GET /metrics`` says, before and after
    raw: bool = False  # the body is all of the reply, its head included
    tls: str = ""  # whose certificate: ``expired``, ``other``, ``own``


def events(kind: str = "openai") -> Events:
    """A whole answer of five tokens."""
    same = {"id": "answer-1", "model": "target"}
    found: Events = []
    count = 0
    for step in STEPS:
        count += len(step)
        finish = "length" if count == 5 else None
        choice: dict[str, Any] = {"index": 0, "text": "x" * len(step), "finish_reason": finish}
        if kind != "llama_cpp":
            ids = {} if kind == "text" else {"token_ids": list(step)}
            found.append({**same, "choices": [{**choice, **ids}]})
            continue
        timings = {"predicted_n": count, "predicted_ms": 1.0 + count, "draft_n": 2 * (count > 1)}
        timings["draft_n_accepted"] = timings["draft_n"]
        told = {"__verbose": {"tokens": list(step)}, "timings": timings}
        found.append({**same, "choices": [choice], **told})
    usage = {"prompt_tokens": 2, "completion_tokens": 5}
    more = {"metrics": {"speculative_decoding": dict(COUNTS)}} if kind == "openai" else {}
    return [*found, {**same, "choices": [], "usage": usage, **more}]


def streamed(listed: Sequence[Any], end: bytes = b"data: [DONE]\n\n") -> Iterator[bytes]:
    """Events as a server writes them; what is no event is written as it is."""
    for each in listed:
        yield each if isinstance(each, bytes) else f"data: {json.dumps(each)}\n\n".encode()
    yield end


def edited(name: str, edit: Callable[[Events], object], kind: str = "openai", **more: Any) -> Fault:
    """A fault of what events say; an edit changes them in place or gives others."""

    def body() -> Iterator[bytes]:
        found = events(kind)
        new = edit(found)
        yield from streamed(new if isinstance(new, list) else found)

    return Fault(name, body, kind=kind, **more)


def sent(name: str, *parts: bytes, **more: Any) -> Fault:
    """A fault whose body is some bytes."""
    return Fault(name, lambda: iter(parts), **more)


def without_end(name: str, part: bytes, first: bytes = b"", **more: Any) -> Fault:
    """A fault whose body goes on for ever."""

    def body() -> Iterator[bytes]:
        yield first
        while True:
            yield part

    return Fault(name, body, **more)


def put(place: int, *keys: Any, to: Any) -> Callable[[Events], None]:
    """Returns what sets a value within one event."""

    def edit(listed: Events) -> None:
        inside: Any = listed[place]
        for key in keys[:-1]:
            inside = inside[key]
        inside[keys[-1]] = to

    return edit


def nested(depth: int, opened: bytes = b"[", closed: bytes = b"]") -> bytes:
    """Lists within each other."""
    return opened * depth + closed * depth


def stream_faults() -> Iterator[Fault]:
    """Events lost, sent twice, in another order, of other types."""
    yield edited("a chunk lost", lambda found: found[:1] + found[2:])
    yield edited("the first chunk lost", lambda found: found[1:])
    yield edited("the last chunk lost", lambda found: found[:2] + found[3:])
    yield edited("a chunk sent twice", lambda found: [*found[:2], *found[1:]])
    yield edited("the first chunk sent twice", lambda found: [found[0], *found])
    yield edited("all chunks sent twice", lambda found: [*found[:3], *found])
    yield edited("a chunk of another answer", put(1, "id", to="answer-2"))
    yield edited("another model in one chunk", put(1, "model", to="another-model"))
    yield edited("two choices", put(1, "choices", to=[{}, {}]))
    yield edited("more tokens than asked", lambda found: found[:1] * 40 + found[1:])
    for kind in ("text", "llama_cpp"):
        yield edited(
            "another model", lambda f: [put(n, "model", to="b")(f) for n in range(3)] and f, kind
        )
        yield edited("chunks sent 40 times", lambda found: found[:2] * 40 + found[2:], kind)
        yield edited("nested usage", put(3, "usage", to={"completion_tokens": [[[]]]}), kind)
        yield edited("usage 10^9", put(3, "usage", "completion_tokens", to=HUGE), kind)
        yield edited("usage -5", put(3, "usage", "completion_tokens", to=-5), kind)
    yield edited("another model", lambda f: [put(n, "model", to="b")(f) for n in range(4)] and f)
    for value in (-5, HUGE, 4, 6, 0, 5.5, float("nan"), float("inf"), "five", [5], True, {"n": 5}):
        yield edited(f"usage {value!r}", put(3, "usage", "completion_tokens", to=value))
    for value in (-2, HUGE, 3, "two"):
        yield edited(f"prompt tokens {value!r}", put(3, "usage", "prompt_tokens", to=value))
    for value in (-1, 300, HUGE, 10**400, 1.5, float("nan"), "5", None, True, [5]):
        yield edited(f"a token id {value!r:.20}", put(1, "choices", 0, "token_ids", to=[value]))
    for value in ({}, "6,7,8", 6, HUGE):
        yield edited(f"token ids {value!r}", put(1, "choices", 0, "token_ids", to=value))
    for value in ("abort", "", 5, ["stop"], {}):
        yield edited(f"a finish {value!r}", put(2, "choices", 0, "finish_reason", to=value))
    for value in (None, {}, "x", 5, [5], [[]]):
        yield edited(f"choices {value!r}", put(1, "choices", to=value))
    for value in (5, [1], {"a": 1}):
        yield edited(f"a model {value!r}", put(1, "model", to=value))


def count_faults() -> Iterator[Fault]:
    """Counts of drafts that are others, or of an answer that none could have."""
    spec = partial(put, 3, "metrics", "speculative_decoding")
    million = [0] * 10**6
    for value in ([HUGE, 3], [0, HUGE], [-1, 3], [1.5], ["a"], million, [float("nan")], {"a": 1}):
        told = {"acceptance_histogram": value, "num_draft_tokens": 4, "num_spec_tokens": 2}
        yield edited(f"a histogram {str(value)[:30]}", spec(to=told))
    for value in ([HUGE], [HUGE, 0], [-1, 3], [2, 0, 0, 0, 0], million, "2", 5, [None], [9, 9]):
        yield edited(f"accepted {str(value)[:30]}", spec("per_step_accepted", to=value))
    for value in ([HUGE, HUGE], [-2, -2], [10**400, 2], [0.5, 2]):
        yield edited(f"drafted {value!r:.30}", spec("per_step_drafted", to=value))
    for number in (HUGE, -1, 10**300):
        told = {"acceptance_histogram": [1, 0, 1], "num_draft_tokens": number * 2}
        told |= {"num_spec_tokens": number}
        yield edited(f"spec tokens {number:.0e}", spec(to=told))
    for value in (None, 5, [], "x", {"speculative_decoding": 5}):
        yield edited(f"metrics {value!r}", put(3, "metrics", to=value))
    plain = partial(edited, edit=lambda found: found[3].pop("metrics"))
    for tokens, drafts, proposed, places, calls in (
        (5, HUGE, HUGE, [HUGE], HUGE), (5, 2, HUGE, [1, 1], 2), (5, HUGE, 4, [1, 1], 2),
        (5, 2, 4, [1, 1], HUGE), (HUGE, 2, 4, [1, 1], 2), (5, -2, 4, [1, 1], 2),
        (5, "NaN", 4, [1, 1], 2), (5, "1e300", 4, [1, 1], 2), (5, 2, "+Inf", [1, 1], 2),
        (5, 2, 4, [2] * 5000, 2),
    ):  # fmt: skip
        said = page(tokens, drafts, proposed, places, calls)
        name = f"counters {tokens}, {drafts}, {proposed}, {places!r:.12}, {calls}"
        yield plain(name, counters=(page(0, 0, 0, [0] * len(places), 0), said))
    twice = page("1e308", 0, 0, [], 0) * 2
    yield plain("counters whose sum is no number", counters=(page(0, 0, 0, [], 0), twice))
    yield plain("counters of 40 MiB", counters=(b"", page(5, 2, 4, [1, 1], 2) * 60_000))
    yield plain("counters of one line", counters=(b"", b"vllm:" + b"a" * 2**22))


def page(tokens: Any, drafts: Any, proposed: Any, places: Sequence[Any], calls: Any) -> bytes:
    """Counters as vLLM writes them."""
    name = "vllm:spec_decode_num_"
    lines = [
        f"vllm:generation_tokens_total {tokens}", f"{name}drafts_total {drafts}",
        f"{name}draft_tokens_total {proposed}", f"vllm:inter_token_latency_seconds_count {calls}",
    ]  # fmt: skip
    by_place = f"{name}accepted_tokens_per_pos_total"
    lines += [f'{by_place}{{position="{n}"}} {each}' for n, each in enumerate(places)]
    return "\n".join([*lines, ""]).encode()


def llama_faults() -> Iterator[Fault]:
    """Timings and tokens of llama.cpp that are others."""
    for name in ("predicted_n", "draft_n", "draft_n_accepted", "predicted_ms"):
        values = (HUGE, -1, float("nan"), "x", [1], 10**400)
        for value in values[2 * (name == "predicted_ms") :]:  # it may go back
            told = put(1, "timings", name, to=value)
            yield edited(f"{name} {value!r:.12}", told, "llama_cpp")
    yield edited("no timings", lambda found: found[1].pop("timings"), "llama_cpp")
    yield edited("a chunk lost", lambda found: found[:1] + found[2:], "llama_cpp")
    yield edited("a chunk sent twice", lambda found: [*found[:2], *found[1:]], "llama_cpp")
    for value in ([HUGE] * 3, [-1] * 3, [], "x", [[6], 7, 8]):
        yield edited(f"tokens {value!r:.20}", put(1, "__verbose", "tokens", to=value), "llama_cpp")


def size_faults() -> Iterator[Fault]:
    """Bodies, lines, heads without an end or of no such kind."""
    chunk = b'data: {"id": "answer-1", "choices": [{"token_ids": [5], "text": "x"}]}\n\n'
    empty = b'data: {"choices": [{"token_ids": [], "text": ""}]}\n\n'
    yield without_end("chunks without an end", chunk * 1000)
    yield without_end("empty chunks without an end", empty * 1000)
    yield without_end("comments without an end", b": still there\n" * 1000)
    yield without_end("blank lines without an end", b"\n" * 65536)
    yield without_end("a line without an end", b"x" * 65536, b"data: ")
    yield without_end("a list of ids without an end", b"5," * 30000, b'data: {"choices": [')
    yield without_end("zeros without an end", bytes(65536))
    yield without_end("a refusal without an end", b"x" * 65536, status=400)
    yield without_end(
        "text without an end",
        b'data: {"choices": [{"text": "%s"}]}\n\n' % (b"x" * 60000),
        kind="text",
    )
    ids = ",".join(["5"] * 10**6).encode()
    yield sent("a million ids in a chunk", b'data: {"choices": [{"token_ids": [%s]}]}\n\n' % ids)
    for depth in (100, 100_000):
        usage = b'data: {"choices": [], "usage": %s}\n\n' % nested(depth)
        yield sent(f"usage nested {depth} deep", usage)
        deep = nested(depth, b'{"a":', b"}").replace(b":}", b":1}", 1)
        yield sent(f"an event nested {depth} deep", b"data: " + deep + b"\n\n")
    yield sent("a number of 5,000 digits", b'data: {"choices": [%s]}\n\n' % (b"9" * 5000))
    bomb = gzip.compress(bytes(2**20)) * 256
    yield sent("a gzip bomb", bomb, headers={"Content-Encoding": "gzip"})
    yield sent("a gzip bomb in a refusal", bomb, status=400, headers={"Content-Encoding": "gzip"})
    packed = gzip.compress(b"".join(streamed(events())))
    yield sent("an answer in gzip", packed, headers={"Content-Encoding": "gzip"})
    whole = b"".join(streamed(events()))
    for kind in ("text/html", "application/json", "image/png"):
        yield sent(f"called {kind}", whole, headers={"Content-Type": kind})
    yield sent("a web page", b"<html><body>no</body></html>", headers={"Content-Type": "text/html"})
    yield sent("JSON in place of a stream", json.dumps(events()[0]).encode() + b"\n")
    yield sent("no byte")
    yield sent("no end", whole.replace(b"data: [DONE]\n\n", b""))
    yield sent("cut in an event", whole[:150])
    yield sent("cut in a letter", 'data: {"choices": [{"text": "ü'.encode()[:-1])
    yield sent("no UTF-8", b'data: {"choices": [{"text": "\xff\xfe"}]}\n\n')
    yield sent("UTF-16", whole.decode().encode("utf-16"))
    yield sent("ends of CR alone", whole.replace(b"\n", b"\r"))
    yield sent("longer than its body", whole, headers={"Content-Length": str(len(whole) + 9)})
    yield sent("shorter than its body", whole, headers={"Content-Length": "150"})
    yield sent("of 10^18 bytes", whole[:150], headers={"Content-Length": str(10**18)})
    yield sent("of -1 bytes", whole, headers={"Content-Length": "-1"})
    head = b"HTTP/1.1 200 OK\r\n"
    raw = partial(sent, raw=True)
    yield raw("a head of 1 MiB", head + b"X-Long: " + b"x" * 2**20 + b"\r\n\r\n")
    yield raw("100,000 fields", head + b"X-A: b\r\n" * 100_000 + b"\r\n")
    yield without_end("a head without an end", b"X-A: b\r\n" * 1000, head, raw=True)
    yield without_end("100 Continue for ever", b"HTTP/1.1 100 Continue\r\n\r\n" * 99, raw=True)
    yield raw("no HTTP", b"220 mail.example ESMTP\r\n")
    yield raw("HTTP/0.9", b"hello")
    yield raw("a chunk of 2^60 bytes", head + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 15)
    yield raw("a chunk of no size", head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    yield Fault("a byte at a time", lambda: slowly(whole))
    yield Fault("silence in the middle", lambda: slowly(b"x", whole[:150], 9.0))


def slowly(data: bytes, first: bytes = b"", gap_s: float = 0.05) -> Iterator[bytes]:
    """Bytes one by one."""
    yield first
    for each in data:
        time.sleep(gap_s)
        yield bytes([each])


def spellings() -> dict[str, str]:
    """The key as a refusal may show it."""
    plain = base64.b64encode(f"user:{KEY}".encode()).decode()
    return {
        "plain": KEY, "in quotes": json.dumps(f"Bearer {KEY}"), "in base64": plain,
        "of an address": urllib.parse.quote(KEY, safe=""), "in capitals": KEY.upper(),
        "each letter of an address": "".join(f"%{ord(each):02X}" for each in KEY),
        "escaped as JSON": "".join(f"\\u{ord(each):04x}" for each in KEY),
        "escaped as Python": "".join(f"\\x{ord(each):02x}" for each in KEY),
        "in hexadecimal digits": KEY.encode().hex(), "with blanks": " ".join(KEY),
        "with line ends": "\n".join(KEY[at : at + 3] for at in range(0, len(KEY), 3)),
        "with written line ends": "\\n".join(KEY[at : at + 3] for at in range(0, len(KEY), 3)),
        "with dashes": "-".join(KEY), "its first half": KEY[:14], "its second half": KEY[14:],
        "its middle": KEY[6:20], "behind 9,990 blanks": " " * 9990 + KEY,
        "in an address": f"http://me:{KEY}@host/v1?key={KEY}",
    }  # fmt: skip


def status_faults() -> Iterator[Fault]:
    """Other statuses, with the key in them."""
    for name, spelt in spellings().items():
        yield sent(f"403, the key {name}", f"no entry for {spelt}, ask".encode(), status=403)
    for status in (400, 401, 404, 418, 429, 500, 502, 503):
        yield sent(f"status {status} with the key", f'{{"error": "{KEY}"}}'.encode(), status=status)
    error = {"error": {"message": f"bad key {KEY}\x1b[31m"}}
    yield sent("an error in the stream with the key", b"".join(streamed([error])))
    for status in (301, 302, 307, 308):
        place = {"Location": f"http://127.0.0.1:1/{KEY}"}
        yield sent(f"a redirect {status}", b"moved", status=status, headers=place)
    for after in ("1e9", "nan", "inf", "-5", "tomorrow", "9" * 5000):
        told = {"Retry-After": after}
        yield sent(f"Retry-After {after:.8}", b"later", status=429, headers=told)
    for status in (204, 206, 304, 999):
        yield sent(f"status {status}", b"", status=status)


def tls_faults() -> Iterator[Fault]:
    """Certificates that cannot be trusted."""
    for whose in ("expired", "other", "own"):
        yield edited(f"TLS: {whose}", lambda found: None, tls=whose)
    yield edited("TLS: none", lambda found: None, tls="none")


FAULTS = (stream_faults, count_faults, llama_faults, size_faults, status_faults, tls_faults)


def all_faults() -> list[Fault]:
    """Every fault."""
    return [fault for part in FAULTS for fault in part()]


@contextmanager
def serving(fault: Fault, certificates: Path | None = None) -> Iterator[str]:
    """Serves with a fault until the block ends; the base address."""
    asked = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if any(fault.counters) else 404)
            self.end_headers()
            self.wfile.write(fault.counters[asked.is_set()])

        def do_POST(self) -> None:
            asked.set()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.close_connection = True
            with suppress(OSError):
                if not fault.raw:
                    self.send_response(fault.status)
                    for name, value in (fault.headers or {}).items():
                        self.send_header(name, value)
                    self.end_headers()
                if not body["stream"]:  # llama.cpp is asked again
                    ids = [token for step in STEPS for token in step]
                    self.wfile.write(json.dumps({"__verbose": {"tokens": ids}}).encode())
                    return
                for part in fault.body():
                    self.wfile.write(part)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.daemon_threads = True
    scheme = "https" if fault.tls else "http"
    if fault.tls not in ("", "none"):
        assert certificates is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / f"{fault.tls}.pem", certificates / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def make_certificates(folder: Path) -> None:
    """Makes an authority, and of it a certificate that has expired and one of another host, and one
    of nobody's; OpenSSL's program does.
    """
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01\n")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=us\n[us]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\n"
        "default_md=sha256\npolicy=any\ncopy_extensions=copy\nunique_subject=no\n"
        "[any]\ncommonName=supplied\n"
    )

    def openssl(*words: str) -> None:
        command = ["openssl", *words]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "key.pem")
    made = ("req", "-x509", "-key", "key.pem", "-days", "99")
    openssl(*made, "-subj", "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1", "-out", "own.pem")
    openssl(*made, "-subj", "/CN=us", "-out", "us.pem")
    for name, place, ends in (
        ("expired", "IP:127.0.0.1", "20200102000000Z"), ("other", "DNS:b.org", "21200102000000Z")
    ):  # fmt: skip
        request = ("req", "-new", "-key", "key.pem", "-subj", f"/CN={name}", "-out", "request.pem")
        openssl(*request, "-addext", f"subjectAltName={place}")
        openssl(
            *("ca", "-batch", "-config", "ca.cnf", "-cert", "us.pem", "-keyfile", "key.pem"),
            *("-startdate", "20200101000000Z", "-enddate", ends, "-in", "request.pem"),
            *("-notext", "-out", f"{name}.pem"),
        )


def ask(url: str, fault: Fault) -> tuple[str, Any]:
    """Asks once; ``answered`` with tokens and calls, or ``refused`` with the line."""
    kind = "llama_cpp" if fault.kind == "llama_cpp" else "openai"
    server = ServerClient(
        url, "target", KEY, expects_ids=fault.kind != "text", kind=kind, timeout_s=1.0,
        answer_timeout_s=LONG_S, attempts=1,
    )  # fmt: skip
    tokenise = (lambda text: [5] * len(text)) if fault.kind == "text" else None
    asking = RequestOptions(SamplingSettings(temperature=0.0), 300, tokenise)
    try:
        (found,) = ServedDecoder(server, asking).generate([Request("p", (1, 2), 5, ())], 0)
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    calls = sorted((each.accepted, each.delivered) for each in found.steps)
    return "answered", [list(found.tokens), calls]


def ask_apart(url: str, fault: Fault, certificates: Path) -> tuple[str, Any, int]:
    """Asks in a process of its own; MiB that it took at most beside what it had."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            if fault.tls:  # whom this process trusts
                os.environ["SSL_CERT_FILE"] = str(certificates / "us.pem")
            before = memory()
            how, what = ask(url, fault)
            told = json.dumps([how, what, memory() - before]).encode()
            os.write(writing, told[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    how, what, mib = json.loads(said or '["died", "", 0]')
    return how, what, mib


def memory() -> int:
    """MiB that this process took at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def leaks(line: str) -> bool:
    """Whether eight letters or digits of the key stand together in a line, in any spelling."""
    bare = "".join(filter(str.isalnum, line)).lower()
    spelt = ["".join(filter(str.isalnum, each)).lower() for each in spellings().values()]
    key = "".join(filter(str.isalnum, KEY)).lower()
    shown = [key, spelt[2][8:], key.encode().hex()]
    return any(s[at : at + 8] in bare for s in shown for at in range(len(s) - 7))


def wrong(how: str, what: Any, right: Any) -> str:
    """Returns what is wrong with how a fault was taken; "" where nothing is."""
    if how == "answered":
        return "" if what == right else f"another answer: {what}"
    if how != "refused":
        return how
    if len(what.splitlines()) != 1 or len(what) > 500:
        return "not one line"
    if not what.startswith(("UnansweredError: http", "RefusedError: http")):
        return "the line does not begin with the address"
    return "the key is shown" if leaks(what) else ""


@dataclass(frozen=True)
class Taken:
    """How a fault was taken."""

    fault: Fault
    line: str  # that refused it; "": it had no effect
    mib: int  # that it took at most
    fails: str  # what is wrong with that; "": nothing


def take(faults: Sequence[Fault]) -> Iterator[Taken]:
    """Asks for an answer with each fault."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_certificates(folder)
        right = {}
        for kind in {each.kind for each in faults}:
            with serving(edited("", lambda found: None, kind)) as url:
                right[kind] = json.loads(json.dumps(ask(url, edited("", len, kind))[1]))
        for fault in faults:
            with serving(fault, folder) as url:
                how, what, mib = ask_apart(url, fault, folder)
            fails = wrong(how, what, right[fault.kind]) or "much memory" * (mib > MOST_MIB)
            yield Taken(fault, str(what) if how == "refused" else "", mib, fails)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    options = parser.parse_args()
    lines = ["| fault | asked as | taken | MiB | |", "| --- | --- | --- | ---: | --- |"]
    every = []
    for each in take([fault for fault in all_faults() if options.only in fault.name]):
        line = each.line.partition("/v1: ")[2] or each.line or "no effect"
        cells = (each.fault.name, each.fault.kind, line, str(each.mib), each.fails)
        lines.append(f"| {' | '.join(cells)} |".replace("\n", " "))
        print(lines[-1], flush=True)
        every.append(each)
    refused = sum(bool(each.line) for each in every)
    bad = sum(bool(each.fails) for each in every)
    most = max((each.mib for each in every), default=0)
    said = f"{refused} refused in one line, {len(every) - refused} without effect, {bad} wrong"
    lines.insert(0, f"{len(every)} faults: {said}; at most {most} MiB more.\n")
    print(lines[0])
    if options.out:
        write_text(options.out, "\n".join([*lines, ""]))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
