r"""The Python interface: models that decode prompts, and jobs that return their rows as a table.

    >>> import spec_bench
    >>> pair = spec_bench.load_pair("embedded")
    >>> answer = pair.decode("Article: The harbour was closed.\nSummary:", "rsd_s:4x3", seed=1)
    >>> len(answer.tokens) == sum(len(step.tokens) for step in answer.steps)
    True
    >>> all(step.nodes == 12 and step.accepted <= step.depth == 3 for step in answer.steps)
    True
    >>> rows = spec_bench.run("cells=[sd:3]", prompts=["Article: Rain.\nSummary:"], results=folder)
    >>> list(rows.decoder)
    ['ar', 'sd']

Accepts the command line's settings and refuses what it refuses, by a ``ValueError`` of one line.
Calls import models and Hydra; the module does not.
"""

from typing import TYPE_CHECKING

from spec_bench.api.answers import Answer, AnswerTimes, Step
from spec_bench.api.commands import (
    AuditReport,
    ComparisonReport,
    Recommendation,
    audit,
    compare,
    recommend,
)
from spec_bench.api.jobs import run, sweep
from spec_bench.api.pairs import LoadedPair, load_pair
from spec_bench.records.sampling import SamplingSettings
from spec_bench.settings.former import make_former_getattr

__all__ = [
    "Answer",
    "AnswerTimes",
    "AuditReport",
    "ComparisonReport",
    "LoadedPair",
    "Recommendation",
    "SamplingSettings",
    "Step",
    "audit",
    "compare",
    "load_pair",
    "recommend",
    "run",
    "sweep",
]

if not TYPE_CHECKING:
    __getattr__ = make_former_getattr(
        __name__,
        {
            "Audited": "AuditReport",
            "Compared": "ComparisonReport",
            "Decoded": "Answer",
            "Recommended": "Recommendation",
            "Seconds": "AnswerTimes",
        },
    )
