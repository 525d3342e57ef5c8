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

from spec_bench.api.answers import Decoded, Seconds, Step
from spec_bench.api.commands import Audited, Compared, Recommended, audit, compare, recommend
from spec_bench.api.jobs import run, sweep
from spec_bench.api.pairs import LoadedPair, load_pair

__all__ = [
    "Audited",
    "Compared",
    "Decoded",
    "LoadedPair",
    "Recommended",
    "Seconds",
    "Step",
    "audit",
    "compare",
    "load_pair",
    "recommend",
    "run",
    "sweep",
]
