"""A server of completions: asked with token ids, asked again, given up in one line.

The key lives in ``Server`` alone: it is in no message of an error, no log and no file. Replies are
read with bounds: on time, on bytes, on lines. What a server says is made fit to be shown.
"""

import fcntl
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from spec_bench.server.stream import (
    LLAMA_AGAIN,
    LLAMA_ASKED,
    AnotherKindError,
    BadStreamError,
    LlamaReader,
    StreamedAnswer,
    StreamReader,
    are_ids,
)
from spec_bench.settings.fields import one_line
from spec_bench.settings.foreign import parse_json
from spec_bench.system.errors import UsageError
from spec_bench.system.limits import call_with_timeout
from spec_bench.system.redaction import redact

_CONTROL = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
MOST_TEXT = 8 * 2**20  # bytes of what is read beside answers
_MOST_LINE = 8 * 2**20
_MOST_ANSWER = 256 * 2**20
_MOST_EVENT = 2**16  # of each token that is asked for, beside a line of any length

Found = TypeVar("Found")
_LONGEST_WAIT_S = 60.0
_SHOWN = 200  # letters of a refusal
_MOST_REFUSAL = 10_000  # bytes of a refusal
# What else a request may say about sampling, so that no server fills it with what its model's files
# or its own defaults say: each names what it would otherwise be changed by.
NEUTRAL: Mapping[str, float] = {
    "min_p": 0.0,
    "typical_p": 1.0,  # llama.cpp
    "repetition_penalty": 1.0,  # vLLM, SGLang
    "repeat_penalty": 1.0,  # llama.cpp
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_ALL = -1  # top_k that cuts nothing, to vLLM, SGLang and llama.cpp alike


def one_short_line(message: object, key: str = "", longest: int | None = None) -> str:
    """A message from outside in one line; its keys are hidden before it is cut."""
    return one_line(redact(_CONTROL.sub(" ", str(message)[:_MOST_REFUSAL]), key), longest)


def read_at_most(parts: Iterator[bytes], most: int, *, cut: bool = False) -> bytes:
    """Returns a body of so many bytes at most, cut there or refused with a BadStreamError."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > most:
            if not cut:
                raise BadStreamError(f"more than {most // 2**20} MiB")
            break
    return bytes(body[:most])


def iter_lines(parts: Iterator[bytes], most: int = _MOST_ANSWER) -> Iterator[bytes]:
    """Whole lines without their ends, of so many bytes at most; a BadStreamError where they are
    more, or one is past all measure.
    """
    rest = b""
    size = 0
    for part in parts:
        size += len(part)
        if size > most:
            raise BadStreamError(f"an answer of more than {most // 2**20} MiB")
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.rstrip(b"\r") for line in whole)
        if len(rest) > _MOST_LINE:
            raise BadStreamError(f"a line of more than {_MOST_LINE // 2**20} MiB")
    if rest:
        yield rest


class ServerError(Exception):
    """No answer can be had; the message is one line and names the address."""


class RequestRefusedError(ServerError):
    """The server refuses what it is asked; it would refuse it again."""


@dataclass
class Server:
    """Where completions come from."""

    url: str  # base address, such as ``http://127.0.0.1:8000/v1``
    model: str  # its name there
    key: str = field(default="", repr=False)  # sent as bearer token; "" sends none
    ids: bool = True  # whether answers are asked for with token ids; else they are text alone
    kind: str = "openai"  # ``openai`` or ``llama_cpp``
    timeout_s: float = 60.0  # without a byte, after which a request is given up
    answer_s: float = 600.0  # for a whole answer
    attempts: int = 3  # requests for one answer, at most
    wait_s: float = 1.0  # before the second of them; doubled each time
    sleep: Callable[[float], None] = time.sleep  # waits so many seconds
    # of a server that this program started, locked while it lives; None: another's
    log: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError("the server's address must start with http:// or https://")
        try:
            import httpx
        except ImportError:
            raise UsageError("servers need httpx: pip install -e '.[server]'") from None
        for chatty in ("httpx", "httpcore"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
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
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        ignore_eos: bool = False,
        stop_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        begun: Callable[[], None] = lambda: None,
    ) -> StreamedAnswer:
        """Returns one answer, streamed, after as many attempts as are allowed.

        Temperature 0 is greedy, ``top_k`` 0 takes all tokens. ``stop_ids`` and the texts ``stop``
        end the answer beside the model's own; ``begun`` is called when its
        first token has come, once an attempt. Raises RefusedError: the server refuses the request;
        ServerError: it gave no whole answer.
        """
        import httpx

        payload: dict[str, Any] = {
            "model": self.model, "prompt": list(prompt), "max_tokens": max_tokens,
            "temperature": temperature, "top_p": top_p, "top_k": top_k or _ALL, **NEUTRAL,
            "stream": True, "stream_options": {"include_usage": True},
            **(LLAMA_ASKED if self.kind == "llama_cpp" else {}),
            **({"return_token_ids": True} if self.kind == "openai" and self.ids else {}),
            **({"ignore_eos": True} if ignore_eos else {}),
            **({} if seed is None else {"seed": seed}),
            **({"stop_token_ids": list(stop_ids)} if stop_ids else {}),
            **({"stop": list(stop)} if stop else {}),
        }  # fmt: skip
        wait_s = self.wait_s
        problem = ""
        for attempt in range(self.attempts):
            if attempt:
                self.sleep(min(wait_s, _LONGEST_WAIT_S))
                wait_s *= 2
            try:  # headers and bodies that drip are never silent: no connection's limit ends them
                served = call_with_timeout(self.answer_s, lambda: self._ask(payload, begun))
                return replace(served, attempts=attempt + 1)
            except AnotherKindError as error:
                raise RequestRefusedError(f"{self.shown}: {error}") from None
            except _LaterError as later:
                problem = later.args[0]
                wait_s = max(wait_s, later.args[1])
            except (BadStreamError, TimeoutError) as error:
                problem = one_short_line(error, self.key, _SHOWN)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                kind = re.sub("(?=[A-Z])", " ", type(error).__name__).strip().lower()
                why = one_short_line(
                    str(error), self.key, _SHOWN
                )  # of TLS, what is wrong with a certificate
                problem = f"{kind}: {why}" if why else kind
            finally:
                self._refuse_strangers()
        several = "s" * (self.attempts > 1)
        raise ServerError(f"{self.shown}: {problem}, after {self.attempts} attempt{several}")

    @property
    def shown(self) -> str:
        """The address, without a password in it."""
        return redact(self.url, self.key)

    def read(self, name: str) -> str | None:
        """What the server says at an address beside its base, such as ``metrics``; None where it
        says nothing.
        """
        import httpx

        root = self.url.rstrip("/").removesuffix("/v1")

        def ask() -> str | None:
            with self._client.stream("GET", f"{root}/{name}") as reply:
                body = read_at_most(reply.iter_raw(), MOST_TEXT)
                return body.decode(errors="replace") if reply.status_code == 200 else None

        try:
            return call_with_timeout(min(self.timeout_s, self.answer_s), ask)
        except (httpx.HTTPError, httpx.InvalidURL, BadStreamError, TimeoutError):
            return None

    def close(self) -> None:
        """Gives the connections back."""
        self._client.close()

    def _refuse_strangers(self) -> None:
        """Raises a ServerError once the server has ended: whoever answers then is another one."""
        with suppress(OSError), open(self.log or "") as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            said = last_line(Path(log.name))
            raise ServerError(f"{self.shown}: the server has ended: {said}") from None

    def _ask(self, payload: Mapping[str, Any], begun: Callable[[], None]) -> StreamedAnswer:
        llama = LlamaReader(payload) if self.kind == "llama_cpp" else None
        reader = llama or StreamReader(self.ids, payload)
        most = min(_MOST_ANSWER, _MOST_LINE + _MOST_EVENT * payload["max_tokens"])
        start = time.perf_counter()
        with self._client.stream("POST", self._address, json=dict(payload)) as response:
            status = int(response.status_code)
            if status == 429 or status >= 500:
                after_s = 0.0
                with suppress(ValueError):
                    after_s = float(response.headers.get("retry-after", 0))
                raise _LaterError(f"status {status}", after_s)
            if status != 200:
                reply = read_at_most(response.iter_raw(), _MOST_REFUSAL, cut=True)
                said = one_short_line(reply.decode(errors="replace"), self.key, _SHOWN)
                raise RequestRefusedError(f"{self.shown}: status {status}: {said}")
            for line in iter_lines(response.iter_raw(), most):
                waiting = not reader.has_tokens
                reader.take(line, time.perf_counter() - start)
                if waiting and reader.has_tokens:
                    begun()
        if llama is not None and llama.lost:
            return replace(llama.served(self._ids_again(payload)), sent_s=start)
        return replace(reader.served(), sent_s=start)

    def _ids_again(self, payload: Mapping[str, Any]) -> list[int]:
        body = {**payload, **LLAMA_AGAIN}
        body.pop("stream_options")
        with self._client.stream("POST", self._address, json=body) as response:
            reply = read_at_most(response.iter_raw(), MOST_TEXT)
        with suppress(ValueError, KeyError, TypeError):
            if are_ids(ids := parse_json(reply)["__verbose"]["tokens"]):
                return ids
        raise BadStreamError("no tokens where they were asked for again")


class _LaterError(Exception):
    """The server may answer later: why not now, and after how many seconds."""


def last_line(log: Path) -> str:
    """Returns the last line that a server said, and not where pydantic's errors are explained."""
    said = log.read_text(errors="replace").strip().splitlines()
    lines = [line for line in said if "https://errors.pydantic.dev/" not in line]
    return f"{one_short_line(lines[-1], longest=_SHOWN)} ({log})" if lines else str(log)
