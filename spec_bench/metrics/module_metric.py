"""Any metric module behind the interface of the ``evaluate`` package.

A name is one of the modules that ship here (``sacrebleu``, ``rouge``), the path of a module on this
machine (a ``.py`` file, or a folder holding one of the same name), or an id on the hub. Every
number that a module returns is a value, and so is the mean of every list with one number per
prompt; other lists (n-gram counts) are parts of a score and are left out.

A module is a black box, so its interval comes from resampled corpora: it is called on prompts drawn
with replacement. How often depends on how long one call takes; the signature says it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from spec_bench.metrics.bootstrap import SEED
from spec_bench.metrics.bounded import share_ends
from spec_bench.metrics.interval import FEWEST, LEVEL, Interval
from spec_bench.settings.fields import one_line

SHIPPED = Path(__file__).parent / "modules"
# Resamples by the most seconds that a module's call takes; a slower one has no interval. Few and
# coarse steps, so that a busy machine seldom changes an interval.
RESAMPLES = ((0.1, 200), (1.0, 50))

References = Sequence[Sequence[str]]


class ModuleMetric:
    """One loaded module.

    Attributes:
        name: its name in columns.
    """

    def __init__(self, name: str, module: Any, origin: str) -> None:
        self.name = name
        self._module = module
        self._origin = origin

    def score(
        self, predictions: Sequence[str], references: References
    ) -> tuple[dict[str, Interval], str]:
        """Column name -> value with its interval, and the signature.

        Raises:
            ValueError: a prompt without a reference, or a module that refuses or returns nothing.
        """
        golds, taken = self._golds(references)
        began = time.perf_counter()
        values, signature = self._compute(predictions, golds)
        took_s = time.perf_counter() - began
        per_prompt = self._per_prompt(values, predictions, golds)
        point = _numbers(values, per_prompt)
        if not point:
            raise ValueError(f"score {self.name}: the module returned no number: {sorted(values)}")
        prompts = len(predictions)
        resamples = _affordable(took_s) if prompts >= FEWEST else 0
        drawn = self._resampled(predictions, golds, per_prompt, resamples)
        columns = {
            f"{self.name}_{key}": _interval(value, drawn, key, prompts)
            for key, value in point.items()
        }
        says = [self._origin, *([signature] if signature else []), *taken, f"resamples:{resamples}"]
        return columns, f"{self.name} " + "|".join(says)

    def _compute(
        self, predictions: Sequence[str], golds: Sequence[Any]
    ) -> tuple[dict[str, Any], str]:
        """One call; its values, and the signature if the module returns one."""
        try:
            result = self._module.compute(predictions=list(predictions), references=list(golds))
        except Exception as error:
            # A module is the user's or the hub's: whatever it raises is about these texts.
            reason = one_line(error, 300)
            raise ValueError(f"score {self.name}: {type(error).__name__}: {reason}") from error
        if not isinstance(result, Mapping):
            raise ValueError(f"score {self.name}: the module returned {type(result).__name__}")
        values = dict(result)
        signature = values.pop("signature", "")
        return values, str(signature)

    def _per_prompt(
        self, values: Mapping[str, Any], predictions: Sequence[str], golds: Sequence[Any]
    ) -> frozenset[str]:
        """The keys whose lists have one number per prompt: with twice the prompts they double."""
        lists = {key: len(value) for key, value in values.items() if _is_numbers(value)}
        if len(predictions) not in lists.values():
            return frozenset()
        twice, _ = self._compute([*predictions, *predictions], [*golds, *golds])
        return frozenset(
            key
            for key, length in lists.items()
            if length == len(predictions) and len(twice[key]) == 2 * length
        )

    def _resampled(
        self,
        predictions: Sequence[str],
        golds: Sequence[Any],
        per_prompt: frozenset[str],
        resamples: int,
    ) -> list[dict[str, float]]:
        """The numbers of that many corpora drawn with replacement."""
        generator, count = np.random.default_rng(SEED), len(predictions)
        drawn = []
        for _ in range(resamples):
            chosen = generator.integers(count, size=count)
            try:
                values, _ = self._compute(
                    [predictions[i] for i in chosen], [golds[i] for i in chosen]
                )
            except ValueError:
                return []  # no value on some resample: no interval
            drawn.append(_numbers(values, per_prompt))
        return drawn

    def _golds(self, references: References) -> tuple[list[Any], list[str]]:
        """References in the shape that the module takes, and a note if it takes one of several.

        Raises:
            ValueError: a prompt has none.
        """
        for index, golds in enumerate(references):
            if not golds:
                raise ValueError(f"score {self.name}: prompt {index} has no reference")
        features = self._module.features
        shapes = features if isinstance(features, list) else [features]
        if any(_takes_several(shape["references"]) for shape in shapes if "references" in shape):
            return [list(golds) for golds in references], []
        several = any(len(golds) > 1 for golds in references)
        return [golds[0] for golds in references], ["references:first"] if several else []


@cache
def load_module(score: str, ours: tuple[str, ...] = ()) -> ModuleMetric:
    """The module of that name, path or hub id; loaded once per process.

    Args:
        score: which.
        ours: scores that are not modules, for the message.

    Raises:
        ValueError: there is no such file, or the hub does not have it or cannot be reached.
    """
    import evaluate

    shipped, path = SHIPPED / f"{score}.py", Path(score).expanduser()
    if shipped.is_file():
        asked, origin = str(shipped), "spec_bench"
    elif path.suffix == ".py" or (path / f"{path.name}.py").is_file():
        asked, origin = str(path.resolve()), "local"
    else:
        asked, origin = score, "hub"
    if origin == "local" and not path.exists():
        raise ValueError(f"score {score!r}: there is no such file")
    try:
        module = evaluate.load(asked, keep_in_memory=True)
    except Exception as error:
        # Loading runs the module's own code: anything may be raised.
        reason = one_line(error, 200)
        if isinstance(error, TypeError) and "NoneType" in reason:
            reason = "it has no class that derives from evaluate.Metric"
        if origin == "hub":
            reason = f"no score of ours, no file, and the hub did not give it ({reason})"
        known = ", ".join([*ours, *shipped_modules()])
        raise ValueError(
            f"score {score!r}: {reason}; without a network: {known}, or a metric module's path"
        ) from error
    return ModuleMetric(_column_name(score), module, f"evaluate:{version('evaluate')}|{origin}")


def shipped_modules() -> list[str]:
    """The names of the modules that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("[!_]*.py"))


def _column_name(score: str) -> str:
    """The last part of a path or id, in letters that a column may have."""
    last = score.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py")
    return re.sub(r"\W+", "_", last).strip("_").lower()


def _numbers(values: Mapping[str, Any], per_prompt: frozenset[str]) -> dict[str, float]:
    """The finite numbers, and the means of the lists with one number per prompt."""
    numbers = {key: float(value) for key, value in values.items() if _is_number(value)}
    numbers.update({key: float(np.mean(values[key])) for key in sorted(per_prompt)})
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


def _interval(
    value: float, drawn: Sequence[Mapping[str, float]], key: str, prompts: int
) -> Interval:
    """With the bootstrap's standard error; no ends if some resample has no value.

    A module does not say what its numbers can be: one that stays in 0..1 in all resamples is taken
    for a share, of any other the interval is Student's t.
    """
    from scipy.special import stdtrit

    if not drawn or any(key not in numbers for numbers in drawn):
        return Interval(value)
    values = np.array([numbers[key] for numbers in drawn])
    error = float(values.std()) * math.sqrt(prompts / (prompts - 1))
    if min(value, values.min()) >= 0 and max(value, values.max()) <= 1:
        return Interval(value, *share_ends(value, error, prompts))
    reach = float(stdtrit(prompts - 1, (1 + LEVEL) / 2)) * error
    return Interval(value, value - reach, value + reach)


def _affordable(took_s: float) -> int:
    """How many resamples a module's speed allows."""
    return next((count for most_s, count in RESAMPLES if took_s <= most_s), 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.number) and not isinstance(value, bool)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray) and all(_is_number(v) for v in value)


def _takes_several(feature: Any) -> bool:
    """Whether a column of references holds lists of texts."""
    return isinstance(feature, list) or type(feature).__name__ in {"Sequence", "List", "LargeList"}
