"""Which server decodes, which one plainly beside it, and how patiently they are asked."""

from __future__ import annotations

from typing import Annotated, Literal

from spec_bench.settings.validation import Ge, Gt, Number, Pattern, Says, Text, Whole, settings

Address = Annotated[
    Text,
    Pattern(r"https?://[^\s/?#@]+[^\s?#@]*"),
    Says("a base address such as http://127.0.0.1:8000/v1, without user and password"),
]


@settings
class ServerSettings:
    """What ``server`` in ``conf/config.yaml`` holds; the key comes from the environment.

    Attributes:
        kind: ``openai``, vLLM and SGLang among them, or ``llama_cpp``.
        url: base address of the completions endpoint; None: nothing is served.
        model: its name there; None: the pair's target, as the pair names it.
        decoder: what the server decodes by, in the user's word: the row's name.
        baseline_url: of a server that decodes plainly; None: of the same one.
        baseline_model: the plain one's name; None: the same one's.
        started: how the server was started; it is the row's identity then, in the address's place,
            which may be another each time.
        baseline_started: likewise the plain one.
        log: that a server started by ``serve`` writes, locked while it lives.
        baseline_log: likewise the plain one.
        rate: requests a second that arrive by themselves, at moments drawn from the seed (an open
            loop); None: the next is sent where one has been answered.
        tokens: ``ids`` where answers are streamed with token ids; ``text`` where they are not, so
            that the text is tokenised again.
        timeout_s: without a byte, after which a request is given up.
        answer_s: for a whole answer.
        attempts: requests for one answer, at most.
        wait_s: before the second of them; doubles with each, 60 at most.
    """

    kind: Literal["openai", "llama_cpp"] = "openai"
    url: Address | None = None
    model: Text | None = None
    decoder: Text = "served"
    baseline_url: Address | None = None
    baseline_model: Text | None = None
    started: Text | None = None
    baseline_started: Text | None = None
    log: Text | None = None
    baseline_log: Text | None = None
    rate: Annotated[Number, Gt(0)] | None = None
    tokens: Literal["ids", "text"] = "ids"
    timeout_s: Annotated[Number, Gt(0)] = 60.0
    answer_s: Annotated[Number, Gt(0)] = 600.0
    attempts: Annotated[Whole, Ge(1)] = 3
    wait_s: Annotated[Number, Ge(0)] = 1.0

    def address(self, plain: bool) -> str | None:
        """Where the server is, or the plain one."""
        return self.baseline_url or self.url if plain else self.url

    @property
    def has_baseline(self) -> bool:
        """Whether a plain decoder is served, too."""
        return self.baseline_url is not None or self.baseline_model is not None
