"""Settings of the decoding server, of the plain server, and of timeouts."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from spec_bench.settings.validation import (
    FiniteFloat,
    Ge,
    Gt,
    NonEmptyStr,
    Requirement,
    StrictInt,
    StringConstraints,
    settings,
)

Address = Annotated[
    NonEmptyStr,
    StringConstraints(pattern=r"^https?://[^\s/?#@]+[^\s?#@]*$"),
    Requirement("a base address such as http://127.0.0.1:8000/v1, without user and password"),
]


@settings
class ServerSettings:
    """Settings under ``server`` in ``conf/config.yaml``; the key comes from the environment."""

    # ``openai``, vLLM and SGLang among them, or ``llama_cpp``
    kind: Literal["openai", "llama_cpp"] = "openai"
    url: Address | None = None  # base address of the completions endpoint; None: nothing is served
    # the model's name there; None: the pair's target
    model: NonEmptyStr | None = None
    decoder: NonEmptyStr = "served"  # the row's name: the user's word for the server's method
    baseline_url: Address | None = None  # of a server that decodes plainly; None: ``url``
    baseline_model: NonEmptyStr | None = None  # the model's name there; None: ``model``
    # command that started the server; identifies the row in place of the address, which may change
    started: NonEmptyStr | None = None
    baseline_started: NonEmptyStr | None = None  # the plain server's
    # log of a server started by ``serve``, locked while it lives
    log: NonEmptyStr | None = None
    baseline_log: NonEmptyStr | None = None  # the plain server's
    # requests per second, arriving at moments drawn from the seed (an open loop); None: each answer
    # triggers the next request
    rate: Annotated[FiniteFloat, Gt(0)] | None = None
    # whether answers are streamed with token ids or as text that is tokenised again
    tokens: Literal["ids", "text"] = "ids"
    # seconds without a byte after which an attempt fails
    timeout_s: Annotated[FiniteFloat, Gt(0)] = 60.0
    answer_s: Annotated[FiniteFloat, Gt(0)] = 600.0  # seconds for a whole answer
    attempts: Annotated[StrictInt, Ge(1)] = 3  # maximum number of requests per answer
    # seconds before the second attempt; doubles with each attempt, up to 60
    wait_s: Annotated[FiniteFloat, Ge(0)] = 1.0

    @property
    def has_baseline(self) -> bool:
        """Whether another server, or another model of this one, decodes plainly."""
        return self.baseline_url is not None or self.baseline_model is not None

    @property
    def baseline_settings(self) -> Self:
        """Settings of the plain server."""
        return replace(
            self,
            url=self.baseline_url or self.url,
            model=self.baseline_model or self.model,
            started=self.baseline_started,
            log=self.baseline_log or self.log,
        )
