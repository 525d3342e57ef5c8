"""A server of completions: asked with token ids, asked again, given up in one line.

The key lives in this object alone: it is in no message of an error, no log and no file.
"""

from __future__ import annotations

import fcntl
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spec_bench.server import llama_cpp
from spec_bench.server.bounds import MOST_TEXT, at_most, lines_of, within
from spec_bench.server.llama_cpp import LlamaReader
from spec_bench.server.masking import fit, masked
from spec_bench.server.stream import (
    AnotherKindError,
    BadStreamError,
    Served,
    StreamReader,
    are_ids,
)

KEY = "SPEC_BENCH_SERVER_KEY"
"""The environment variable whose value is sent as bearer token."""
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
        kind: ``openai`` or ``llama_cpp``.
        timeout_s: without a byte, after which a request is given up.
        answer_s: for a whole answer.
        attempts: requests for one answer, at most.
        wait_s: before the second of them; doubled each time.
        sleep: waits so many seconds.
        log: of a server that this program started, locked while it lives; None: another's.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    ids: bool = True
    kind: str = "openai"
    timeout_s: float = 60.0
    answer_s: float = 600.0
    attempts: int = 3
    wait_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    log: str | None = None

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
            "top_k": top_k or _ALL,
            **NEUTRAL,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._asked,
            **({"ignore_eos": True} if ignore_eos else {}),
            **({} if seed is None else {"seed": seed}),
            **({"stop_token_ids": list(stop_ids)} if stop_ids else {}),
        }
        wait_s, problem = self.wait_s, ""
        for attempt in range(self.attempts):
            if attempt:
                self.sleep(min(wait_s, _LONGEST_WAIT_S))
                wait_s *= 2
            try:
                served = within(self.answer_s, lambda: self._ask(payload, begun))
                return replace(served, attempts=attempt + 1)
            except AnotherKindError as error:
                raise RefusedError(f"{self.shown}: {error}") from None
            except _LaterError as later:
                problem, wait_s = later.args[0], max(wait_s, later.args[1])
            except BadStreamError as error:
                problem = fit(error, self.key, _SHOWN)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = re.sub("(?=[A-Z])", " ", type(error).__name__).strip().lower()
            finally:
                self._refuse_strangers()
        several = "s" * (self.attempts > 1)
        raise ServerError(f"{self.shown}: {problem}, after {self.attempts} attempt{several}")

    @property
    def shown(self) -> str:
        """The address, without a password in it."""
        return masked(self.url, self.key)

    def read(self, name: str) -> str | None:
        """What the server says at an address beside its base, such as ``metrics``; None where it
        says nothing.
        """
        import httpx

        root = self.url.rstrip("/").removesuffix("/v1")

        def ask() -> str | None:
            with self._client.stream("GET", f"{root}/{name}") as reply:
                body = at_most(reply.iter_raw(), MOST_TEXT)
                return body.decode(errors="replace") if reply.status_code == 200 else None

        try:
            return within(min(self.timeout_s, self.answer_s), ask)
        except (httpx.HTTPError, httpx.InvalidURL, BadStreamError):
            return None

    def close(self) -> None:
        """Gives the connections back."""
        self._client.close()

    def _refuse_strangers(self) -> None:
        """Whoever answers once the server has ended is another one.

        Raises:
            ServerError: it has.
        """
        with suppress(OSError), open(self.log or "") as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            said = last_line(Path(log.name))
            raise ServerError(f"{self.shown}: the server has ended: {said}") from None

    def _ask(self, payload: Mapping[str, Any], begun: Callable[[], None]) -> Served:
        llama = LlamaReader() if self.kind == "llama_cpp" else None
        reader, start = llama or StreamReader(self.ids), time.perf_counter()
        with self._client.stream("POST", self._address, json=dict(payload)) as response:
            status = int(response.status_code)
            if status == 429 or status >= 500:
                raise _LaterError(f"status {status}", _retry_after_s(response.headers))
            if status != 200:
                reply = at_most(response.iter_raw(), _MOST_REFUSAL, cut=True)
                said = fit(reply.decode(errors="replace"), self.key, _SHOWN)
                raise RefusedError(f"{self.shown}: status {status}: {said}")
            for line in lines_of(response.iter_raw()):
                waiting = not reader.begun
                reader.take(line, time.perf_counter() - start)
                if waiting and reader.begun:
                    begun()
        if llama is not None and llama.lost:
            return replace(llama.served(self._ids_again(payload)), sent_s=start)
        return replace(reader.served(), sent_s=start)

    @property
    def _asked(self) -> Mapping[str, Any]:
        """What makes a server of this kind send token ids."""
        if self.kind == "llama_cpp":
            return llama_cpp.ASKED
        return {"return_token_ids": True} if self.ids else {}

    def _ids_again(self, payload: Mapping[str, Any]) -> list[int]:
        """The answer's tokens, asked for without a stream.

        Raises:
            BadStreamError: there are none.
        """
        body = {**payload, **llama_cpp.AGAIN}
        body.pop("stream_options")
        with self._client.stream("POST", self._address, json=body) as response:
            reply = at_most(response.iter_raw(), MOST_TEXT)
        try:
            ids = json.loads(reply)["__verbose"]["tokens"]
        except (ValueError, KeyError, TypeError):
            ids = None
        if not are_ids(ids):
            raise BadStreamError("no tokens where they were asked for again")
        return list(ids)


class _LaterError(Exception):
    """The server may answer later: why not now, and after how many seconds."""


def last_line(log: Path) -> str:
    """The last line that a server said."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{fit(lines[-1], longest=_SHOWN)} ({log})" if lines else str(log)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    with suppress(ValueError):
        return max(0.0, float(headers.get("retry-after", 0)))
    return 0.0
