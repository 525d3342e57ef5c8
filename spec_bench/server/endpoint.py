"""A server of completions: asked with token ids, asked again, given up in one line.

The key lives in this object alone: it is in no message of an error, no log and no file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spec_bench.server.stream import BadStreamError, Served, StreamReader
from spec_bench.settings.fields import one_line

KEY = "SPEC_BENCH_SERVER_KEY"
"""The environment variable whose value is sent as bearer token."""
_LONGEST_WAIT_S = 60.0
_SHOWN = 200  # letters of a refusal
_MOST = 8 * 2**20  # bytes of one line


class ServerError(Exception):
    """No answer can be had; the message is one line and names the address."""


class RefusedError(ServerError):
    """The server refuses what it is asked; it would refuse it again."""


@dataclass
class Server:
    """Where completions come from.

    Attributes:
        url: base address, such as ``http://127.0.0.1:8000/v1``.
        model: its name there.
        key: sent as bearer token; "" sends none.
        ids: whether answers are asked for with token ids; else they are text alone.
        timeout_s: without a byte, after which a request is given up.
        answer_s: for a whole answer.
        attempts: requests for one answer, at most.
        wait_s: before the second of them; doubled each time.
        sleep: waits so many seconds.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    ids: bool = True
    timeout_s: float = 60.0
    answer_s: float = 600.0
    attempts: int = 3
    wait_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError("the server's address must start with http:// or https://")
        try:
            import httpx
        except ImportError:
            raise ValueError("servers need httpx: pip install 'spec-bench[server]'") from None
        for chatty in ("httpx", "httpcore"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            self._client = httpx.Client(
                headers={"Accept-Encoding": "identity", **headers}, timeout=self.timeout_s
            )
        except ValueError:
            raise ValueError("the server's key cannot be sent in a header") from None
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
        begun: Callable[[], None] = lambda: None,
    ) -> Served:
        """One answer, streamed, after as many attempts as are allowed.

        Args:
            prompt: token ids.
            max_tokens: at which it ends.
            temperature: 0 for greedy.
            top_p: mass that is sampled from.
            top_k: most probable tokens that are sampled from; 0: all.
            seed: of the server's sampling.
            ignore_eos: go on past the end token.
            stop_ids: tokens that end the answer, beside the model's own.
            begun: called when its first token has come, once an attempt.

        Raises:
            RefusedError: the server refuses the request.
            ServerError: it gave no whole answer.
        """
        import httpx

        payload: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True} if self.ids else {}),
            **({"ignore_eos": True} if ignore_eos else {}),
            **({} if seed is None else {"seed": seed}),
            **({"top_k": top_k} if top_k else {}),
            **({"stop_token_ids": list(stop_ids)} if stop_ids else {}),
        }
        wait_s, problem = self.wait_s, ""
        for attempt in range(self.attempts):
            if attempt:
                self.sleep(min(wait_s, _LONGEST_WAIT_S))
                wait_s *= 2
            try:
                return replace(self._ask(payload, begun), attempts=attempt + 1)
            except _LaterError as later:
                problem, wait_s = str(later), max(wait_s, later.wait_s)
            except BadStreamError as error:
                problem = str(error)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = _in_words(type(error).__name__)
        raise ServerError(f"{self.url}: {problem}, after {_times(self.attempts)}")

    def read(self, name: str) -> str | None:
        """What the server says at an address beside its base, such as ``metrics``; None where it
        says nothing.
        """
        import httpx

        root = self.url.rstrip("/").removesuffix("/v1")
        try:
            reply = self._client.get(f"{root}/{name}")
        except (httpx.HTTPError, httpx.InvalidURL):
            return None
        return str(reply.text) if reply.status_code == 200 else None

    def close(self) -> None:
        """Gives the connections back."""
        self._client.close()

    def _ask(self, payload: Mapping[str, Any], begun: Callable[[], None]) -> Served:
        reader, start = StreamReader(self.ids), time.perf_counter()
        with self._client.stream("POST", self._address, json=dict(payload)) as response:
            status = int(response.status_code)
            if status == 429 or status >= 500:
                raise _LaterError(f"status {status}", _retry_after_s(response.headers))
            parts = self._within(response.iter_raw(), start)
            if status != 200:
                reply = b"".join(parts)[:10_000].decode(errors="replace")
                reply = reply.replace(self.key, "***") if self.key else reply
                shown = one_line(reply, _SHOWN)
                raise RefusedError(f"{self.url}: status {status}: {shown}")
            for line in _lines(parts):
                waiting = not reader.begun
                reader.take(line, time.perf_counter() - start)
                if waiting and reader.begun:
                    begun()
        return replace(reader.served(), sent_s=start)

    def _within(self, parts: Iterator[bytes], start: float) -> Iterator[bytes]:
        """The parts of a reply as long as there is time for it.

        Raises:
            BadStreamError: there is none left.
        """
        for part in parts:
            yield part
            if time.perf_counter() - start > self.answer_s:
                raise BadStreamError(f"no whole answer within {self.answer_s:g} s")


class _LaterError(Exception):
    """The server may answer later."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def _lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines without their ends.

    Raises:
        BadStreamError: one is past all measure.
    """
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from (line.rstrip(b"\r") for line in lines)
        if len(rest) > _MOST:
            raise BadStreamError(f"a line of more than {_MOST // 2**20} MiB")
    if rest:
        yield rest


def _in_words(name: str) -> str:
    """``ReadTimeout`` as ``read timeout``."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()


def _times(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("retry-after", 0)))
    except ValueError:
        return 0.0
