"""An endpoint that speaks OpenAI's chat completions: asked, asked again, given up.

The key lives in this object alone: it is in no message of an error, no log and no file, nor are
parts of it or other writings of it that the endpoint sends back.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spec_bench.judge.reply import NoWholeReplyError, hidden, post
from spec_bench.judge.settings import JudgeSettings
from spec_bench.settings.fields import one_line

# The first pair whose address is set; a key goes to its own address only.
VARIABLES = (
    ("SPEC_BENCH_JUDGE_URL", "SPEC_BENCH_JUDGE_KEY"),
    ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
)
_LONGEST_WAIT_S = 60.0
_SHOWN = 200  # letters of a refusal
_READ = 10_000  # bytes of a refusal that are looked at
_LONG_PART = 8  # letters of the key in a row that no judgement has by chance


class JudgementFailedError(Exception):
    """This judgement cannot be had; others may."""


class NoReplyError(JudgementFailedError):
    """However often it was asked for, nothing came."""


class RefusedError(JudgementFailedError):
    """No judgement can be had: the key, or the model, or the address is not known there."""


@dataclass
class Endpoint:
    """Where judgements come from.

    Attributes:
        url: base address, such as ``http://127.0.0.1:8000/v1``.
        key: sent as bearer token; "" sends none.
        settings: model and patience.
        sleep: waits so many seconds.
        requests: how many were sent.
    """

    url: str = field(repr=False)
    key: str = field(repr=False)
    settings: JudgeSettings
    sleep: Callable[[float], None] = time.sleep
    requests: int = 0

    def __post_init__(self) -> None:
        try:
            import httpx
        except ImportError:
            raise ValueError("judging needs httpx: pip install 'spec-bench[judge]'") from None
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            # A connection for each request, so that its end ends nobody else's.
            self._client = httpx.Client(
                headers={"Accept-Encoding": "gzip, identity", **headers},
                timeout=self.settings.timeout_s,
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        except ValueError:
            raise ValueError("the judge's key cannot be sent in a header") from None
        for chatty in ("httpx", "httpcore"):  # they log addresses and replies' headers
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self._address = self.url.rstrip("/") + "/chat/completions"

    def payload(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """The request's body."""
        body: dict[str, Any] = {"model": self.settings.model, "messages": messages}
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        if self.settings.max_tokens is not None:
            body["max_tokens"] = self.settings.max_tokens
        return body

    def ask(self, payload: Mapping[str, Any]) -> str:
        """The reply's text, after as many attempts as the settings allow.

        Raises:
            JudgementFailedError: refused for what it asks, or a reply without a text.
            RefusedError: refused whatever it asks.
            NoReplyError: no reply after the last attempt.
        """
        import httpx

        wait_s, problem = self.settings.wait_s, ""
        for attempt in range(self.settings.attempts):
            if attempt:
                self.sleep(min(wait_s, _LONGEST_WAIT_S))
                wait_s *= 2
            self.requests += 1
            try:
                reply = post(self._client, self._address, payload, self.settings.timeout_s)
            except NoWholeReplyError as error:
                problem = str(error)
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = type(error).__name__
                continue
            if reply.status == 429 or reply.status >= 500:
                problem = f"status {reply.status}"
                wait_s = max(wait_s, _retry_after_s(reply.headers))
                continue
            if reply.status != 200:
                raise self._refusal(reply.status, reply.body)
            return hidden(_text(reply.body), self.key, _LONG_PART)
        raise NoReplyError(f"{problem} after {self.settings.attempts} attempts")

    def close(self) -> None:
        """Gives the connections back."""
        self._client.close()

    def _refusal(self, status: int, body: bytes) -> JudgementFailedError:
        # Some endpoints repeat the key that they refuse.
        text = hidden(body[:_READ].decode(errors="replace"), self.key)
        kind = RefusedError if status in (401, 403, 404) else JudgementFailedError
        return kind(f"status {status}: {one_line(text, _SHOWN)}")


def endpoint_of(settings: JudgeSettings, environment: Mapping[str, str] | None = None) -> Endpoint:
    """The endpoint that the environment names.

    Raises:
        ValueError: it names none, or one that is no address, or httpx is not installed.
    """
    values = os.environ if environment is None else environment
    for url, key in VARIABLES:
        if address := values.get(url, "").strip():
            if not address.startswith(("http://", "https://")):
                # Not shown: an address may hold a password.
                raise ValueError(f"{url} must start with http:// or https://")
            return Endpoint(address, values.get(key, "").strip(), settings)
    raise ValueError(f"no endpoint: set {' or '.join(url for url, _ in VARIABLES)}")


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds that the endpoint asks to wait; 0 where it does not say so in seconds."""
    try:
        return max(0.0, float(headers.get("retry-after", 0)))
    except ValueError:
        return 0.0


def _text(body: bytes) -> str:
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, TypeError, LookupError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise JudgementFailedError("a reply without a text")
    return text
