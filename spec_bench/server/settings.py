"""Which server decodes, which one plainly beside it, and how patiently they are asked."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from spec_bench.settings.validation import (
    Allowed,
    FiniteFloat,
    Ge,
    Gt,
    NonEmptyStr,
    StrictInt,
    StringConstraints,
    settings,
)

Address = Annotated[
    NonEmptyStr,
    StringConstraints(pattern=r"^https?://[^\s/?#@]+[^\s?#@]*$"),
    Allowed("a base address such as http://127.0.0.1:8000/v1, without user and password"),
]


@settings
class ServerSettings:
    """What ``server`` in ``conf/config.yaml`` holds; the key comes from the environment."""

    # ``openai``, vLLM and SGLang among them, or ``llama_cpp``
    kind: Literal["openai", "llama_cpp"] = "openai"
    url: Address | None = None  # base address of the completions endpoint; None: nothing is served
    model: NonEmptyStr | None = (
        None  # its name there; None: the pair's target, as the pair names it
    )
    decoder: NonEmptyStr = (
        "served"  # what the server decodes by, in the user's word: the row's name
    )
    baseline_url: Address | None = None  # of a server that decodes plainly; None: of the same one
    baseline_model: NonEmptyStr | None = None  # the plain one's name; None: the same one's
    # how the server was started; it is the row's identity then, in the address's place, which may
    # be another each time.
    started: NonEmptyStr | None = None
    baseline_started: NonEmptyStr | None = None  # likewise the plain one
    log: NonEmptyStr | None = (
        None  # that a server started by ``serve`` writes, locked while it lives
    )
    baseline_log: NonEmptyStr | None = None  # likewise the plain one
    # requests a second that arrive by themselves, at moments drawn from the seed (an open loop);
    # None: the next is sent where one has been answered.
    rate: Annotated[FiniteFloat, Gt(0)] | None = None
    # ``ids`` where answers are streamed with token ids; ``text`` where they are not, so that the
    # text is tokenised again.
    tokens: Literal["ids", "text"] = "ids"
    timeout_s: Annotated[FiniteFloat, Gt(0)] = (
        60.0  # without a byte, after which a request is given up
    )
    answer_s: Annotated[FiniteFloat, Gt(0)] = 600.0  # for a whole answer
    attempts: Annotated[StrictInt, Ge(1)] = 3  # requests for one answer, at most
    # before the second of them; doubles with each, 60 at most
    wait_s: Annotated[FiniteFloat, Ge(0)] = 1.0

    @property
    def has_baseline(self) -> bool:
        """Whether a plain decoder is served, too."""
        return self.baseline_url is not None or self.baseline_model is not None

    @property
    def plain(self) -> Self:
        """How that one is asked."""
        return replace(
            self,
            url=self.baseline_url or self.url,
            model=self.baseline_model or self.model,
            started=self.baseline_started,
            log=self.baseline_log or self.log,
        )
