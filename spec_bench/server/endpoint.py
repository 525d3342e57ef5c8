"""Client of a completions server: sends token ids, retries, and raises errors of one line.

Only ``ServerClient`` has the key; no error message, log or file contains it. Replies have bounds
on time, bytes and lines. Messages from the server are cleaned before they are shown.
"""

import fcntl
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spec_bench.records.sampling import SamplingSettings
from spec_bench.server.stream import (
    LLAMA_IDS_OPTIONS,
    LLAMA_OPTIONS,
    BadStreamError,
    LlamaCppStreamReader,
    OtherServerKindError,
    StreamedAnswer,
    StreamReader,
    is_token_id_list,
)
from spec_bench.settings.fields import to_one_line
from spec_bench.settings.foreign import parse_json_within_limits
from spec_bench.system.errors import UsageError
from spec_bench.system.limits import call_with_timeout
from spec_bench.system.redaction import redact

_CONTROL = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
MOST_TEXT = 8 * 2**20  # bytes of a reply that is no answer
_MOST_LINE = 8 * 2**20
_MOST_ANSWER = 256 * 2**20
_MOST_EVENT = 2**16  # bytes per requested token


_LONGEST_WAIT_S = 60.0
_MAX_SHOWN = 200  # letters of a refusal
_MOST_REFUSAL = 10_000  # bytes of a refusal
# Neutral values of other sampling options, so that no server uses its own or its model's defaults.
NEUTRAL: Mapping[str, float] = {
    "typical_p": 1.0,  # llama.cpp
    "repetition_penalty": 1.0,  # vLLM, SGLang
    "repeat_penalty": 1.0,  # llama.cpp
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_GREEDY = SamplingSettings(temperature=0.0)
_ALL_TOKENS = -1  # top_k that cuts nothing in vLLM, SGLang and llama.cpp


def redact_to_one_line(message: object, key: str = "", max_letters: int | None = None) -> str:
    """Formats a foreign message as one line; keys are redacted before it is cut."""
    return to_one_line(redact(_CONTROL.sub(" ", str(message)[:_MOST_REFUSAL]), key), max_letters)


def read_at_most(blocks: Iterator[bytes], max_bytes: int, *, cut: bool = False) -> bytes:
    """Reads a body of at most ``max_bytes`` bytes; cuts a longer one or raises BadStreamError."""
    body = bytearray()
    for block in blocks:
        body += block
        if len(body) > max_bytes:
            if not cut:
                raise BadStreamError(f"more than {max_bytes // 2**20} MiB")
            break
    return bytes(body[:max_bytes])


def iter_lines(blocks: Iterator[bytes], max_bytes: int = _MOST_ANSWER) -> Iterator[bytes]:
    """Splits blocks of bytes into lines without their ends.

    Raises BadStreamError if there are more than ``max_bytes`` bytes, or a line is too long.
    """
    tail = b""
    size = 0
    for block in blocks:
        size += len(block)
        if size > max_bytes:
            raise BadStreamError(f"an answer of more than {max_bytes // 2**20} MiB")
        *lines, tail = (tail + block).split(b"\n")
        yield from (line.rstrip(b"\r") for line in lines)
        if len(tail) > _MOST_LINE:
            raise BadStreamError(f"a line of more than {_MOST_LINE // 2**20} MiB")
    if tail:
        yield tail


class ServerError(Exception):
    """The server does not answer; the message is one line and names the address."""


class RequestRefusedError(ServerError):
    """The server refuses the request, and would refuse it again."""


@dataclass
class ServerClient:
    """A client of one completions server."""

    url: str  # base address, such as ``http://127.0.0.1:8000/v1``
    model: str  # the model's name there
    api_key: str = field(default="", repr=False)  # sent as bearer token; "" sends none
    expects_ids: bool = True  # whether to request token ids; else answers are text only
    kind: str = "openai"  # ``openai`` or ``llama_cpp``
    timeout_s: float = 60.0  # seconds without a byte after which an attempt fails
    answer_timeout_s: float = 600.0  # seconds for a whole answer
    attempts: int = 3  # maximum number of requests per answer
    retry_wait_s: float = 1.0  # seconds before the second attempt; doubled each time
    sleep: Callable[[float], None] = time.sleep
    log: str | None = None  # log of a server that we started; locked while it runs

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError("the server's address must start with http:// or https://")
        try:
            import httpx
        except ImportError:
            raise UsageError("servers need httpx: pip install -e '.[server]'") from None
        for library in ("httpx", "httpcore"):
            logging.getLogger(library).setLevel(logging.WARNING)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            self._client = httpx.Client(
                headers={"Accept-Encoding": "identity", **headers}, timeout=self.timeout_s
            )
        except ValueError:
            raise UsageError("the server's key cannot be sent in a header") from None
        self._address = self.url.rstrip("/") + "/completions"

    def complete(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingSettings = _GREEDY,
        *,
        seed: int | None = None,
        ignore_eos: bool = False,
        stop_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        on_first_token: Callable[[], None] = lambda: None,
    ) -> StreamedAnswer:
        """Requests one streamed answer, with retries.

        ``stop_ids`` and the texts ``stop`` end the answer, as the model's own end tokens do.
        ``on_first_token`` is called once per attempt. Raises RequestRefusedError if the server
        refuses the request, ServerError if it gave no whole answer.
        """
        import httpx

        payload: dict[str, Any] = {
            "model": self.model, "prompt": list(prompt), "max_tokens": max_tokens,
            **NEUTRAL, **sampling.get_portable_options(), "top_k": sampling.top_k or _ALL_TOKENS,
            "stream": True, "stream_options": {"include_usage": True},
            **(LLAMA_OPTIONS if self.kind == "llama_cpp" else {}),
            **({"return_token_ids": True} if self.kind == "openai" and self.expects_ids else {}),
            **({"ignore_eos": True} if ignore_eos else {}),
            **({} if seed is None else {"seed": seed}),
            **({"stop_token_ids": list(stop_ids)} if stop_ids else {}),
            **({"stop": list(stop)} if stop else {}),
        }  # fmt: skip
        wait_s = self.retry_wait_s
        problem = ""
        for attempt in range(self.attempts):
            if attempt:
                self.sleep(min(wait_s, _LONGEST_WAIT_S))
                wait_s *= 2
            answer = refusal = None
            try:  # the connection's timeouts never end a reply that keeps dripping
                answer = call_with_timeout(
                    self.answer_timeout_s, lambda: self._request_answer(payload, on_first_token)
                )
            except OtherServerKindError as error:
                refusal = RequestRefusedError(f"{self.public_url}: {error}")
            except RequestRefusedError as error:
                refusal = error
            except _RetryLaterError as later:
                problem = later.args[0]
                wait_s = max(wait_s, later.args[1])
            except (BadStreamError, TimeoutError) as error:
                problem = redact_to_one_line(error, self.api_key, _MAX_SHOWN)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = self._describe_connection_failure(error)
            self._raise_if_own_server_ended()  # another program may have answered
            if refusal:
                raise refusal
            if answer:
                return replace(answer, attempts=attempt + 1)
        plural = "s" * (self.attempts > 1)
        raise ServerError(f"{self.public_url}: {problem}, after {self.attempts} attempt{plural}")

    @property
    def public_url(self) -> str:
        """The base address without a password in it."""
        return redact(self.url, self.api_key)

    def fetch_text(self, path: str) -> str | None:
        """Fetches another path of the server, such as ``metrics``; None if that fails."""
        import httpx

        root = self.url.rstrip("/").removesuffix("/v1")

        def ask() -> str | None:
            with self._client.stream("GET", f"{root}/{path}") as reply:
                body = read_at_most(reply.iter_raw(), MOST_TEXT)
                return body.decode(errors="replace") if reply.status_code == 200 else None

        try:
            return call_with_timeout(min(self.timeout_s, self.answer_timeout_s), ask)
        except (httpx.HTTPError, httpx.InvalidURL, BadStreamError, TimeoutError):
            return None

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _describe_connection_failure(self, error: Exception) -> str:
        """Describes a failed connection by the kind of its error and the message."""
        kind = re.sub("(?=[A-Z])", " ", type(error).__name__).strip().lower()
        # after a failed TLS handshake the message is about the certificate
        message = redact_to_one_line(str(error), self.api_key, _MAX_SHOWN)
        return f"{kind}: {message}" if message else kind

    def _raise_if_own_server_ended(self) -> None:
        """Raises ServerError if our server has ended, because another may answer on its port."""
        if not self.log:
            return
        with suppress(OSError), open(self.log) as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            last_words = format_last_line_and_path(Path(log.name))
            raise ServerError(f"{self.public_url}: the server has ended: {last_words}") from None

    def _request_answer(
        self, payload: Mapping[str, Any], on_first_token: Callable[[], None]
    ) -> StreamedAnswer:
        llama = LlamaCppStreamReader(payload) if self.kind == "llama_cpp" else None
        reader = llama or StreamReader(self.expects_ids, payload)
        limit = min(_MOST_ANSWER, _MOST_LINE + _MOST_EVENT * payload["max_tokens"])
        start = time.perf_counter()
        with self._client.stream("POST", self._address, json=dict(payload)) as response:
            status = int(response.status_code)
            if status == 429 or status >= 500:
                after_s = 0.0
                with suppress(ValueError):
                    after_s = float(response.headers.get("retry-after", 0))
                raise _RetryLaterError(f"status {status}", after_s)
            if status != 200:
                reply = read_at_most(response.iter_raw(), _MOST_REFUSAL, cut=True)
                text = reply.decode(errors="replace")
                message = redact_to_one_line(text, self.api_key, _MAX_SHOWN)
                raise RequestRefusedError(f"{self.public_url}: status {status}: {message}")
            for line in iter_lines(response.iter_raw(), limit):
                had_tokens = not reader.has_tokens
                reader.parse_line(line, time.perf_counter() - start)
                if had_tokens and reader.has_tokens:
                    on_first_token()
        if llama is not None and llama.missing_id_count:
            return replace(
                llama.build_answer(self._request_again_for_token_ids(payload)), sent_s=start
            )
        return replace(reader.build_answer(), sent_s=start)

    def _request_again_for_token_ids(self, payload: Mapping[str, Any]) -> list[int]:
        body = {**payload, **LLAMA_IDS_OPTIONS}
        body.pop("stream_options")
        with self._client.stream("POST", self._address, json=body) as response:
            reply = read_at_most(response.iter_raw(), MOST_TEXT)
        with suppress(ValueError, KeyError, TypeError):
            if is_token_id_list(ids := parse_json_within_limits(reply)["__verbose"]["tokens"]):
                return ids
        raise BadStreamError("no tokens where they were asked for again")


class _RetryLaterError(Exception):
    """The server may answer later; holds the reason and the seconds to wait."""


def format_last_line_and_path(log: Path) -> str:
    """Formats the last line of a server's log, except pydantic's link, and the log's path."""
    all_lines = log.read_text(errors="replace").strip().splitlines()
    lines = [line for line in all_lines if "https://errors.pydantic.dev/" not in line]
    return f"{redact_to_one_line(lines[-1], max_letters=_MAX_SHOWN)} ({log})" if lines else str(log)
