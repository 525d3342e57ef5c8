"""Any metric module with the interface of the ``evaluate`` package.

A name is that of a module that ships here (``sacrebleu``, ``rouge``), the path of a module on this
machine (a ``.py`` file, or a folder with a file of the same name), or an id on the hub. A file with
a function ``compute(predictions, references)`` is enough, where ``references`` has a list of texts
for each prompt; a function without this argument, or with a default for it, needs no references.
Every number that a module returns becomes a value, and so does the mean of every list with one
number per prompt; other lists (n-gram counts) are left out. How a module computes its values is not
known, so they have no intervals.
"""

import ast
import inspect
import re
import runpy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import zip_longest
from numbers import Real
from pathlib import Path
from traceback import extract_tb
from types import SimpleNamespace
from typing import Any

import numpy as np

from spec_bench.metrics import own_code
from spec_bench.metrics.interval import Interval
from spec_bench.settings.fields import format_suggestion, to_one_line
from spec_bench.system.errors import UsageError
from spec_bench.system.hub import probe_hub_and_set_offline

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class ModuleScore:
    """A loaded metric module."""

    def __init__(self, name: str, module: Any, origin: str) -> None:
        self.name = name  # begins the names of its columns
        self._module = module
        self._origin = origin
        features = module.features
        shapes = features if isinstance(features, list) else [features]
        # Accepted types of a prompt's references; empty if the module takes no references.
        self._kinds = [shape["references"] for shape in shapes if "references" in shape]
        self.needs_references = bool(self._kinds) and not getattr(module, "optional", False)

    def score(
        self,
        predictions: Sequence[str],
        references: Sequence[Sequence[str]],
        **options: Any,
    ) -> tuple[dict[str, Interval], str]:
        """Computes the module's columns (name -> value, which may be NaN or infinite) and its
        signature; ``options`` are passed on to the module. Raises UsageError if a prompt lacks a
        reference that is needed, or if the module fails or returns no number.
        """
        for index, prompt_references in enumerate(references):
            if not prompt_references and self.needs_references:
                raise UsageError(f"score {self.name}: prompt {index} has no reference")
        takes_several = self._accepts_multiple_references()
        golds: Sequence[Any] = (
            [list(texts) for texts in references]
            if takes_several
            else [text for texts in references for text in texts[:1]]
        )
        takes_first = (
            bool(self._kinds)
            and not takes_several
            and any(len(prompt_references) > 1 for prompt_references in references)
        )
        values, signature = self._compute_values_and_signature(predictions, golds, **options)
        numbers = {key: value for key, value in values.items() if _is_number_or_bool(value)}
        lists = {
            key: value
            for key, value in values.items()
            if isinstance(value, list | tuple | np.ndarray)
            and len(value) == len(predictions)
            and all(map(_is_number_or_bool, value))
        }
        if lists:  # with twice the prompts, a list with a number per prompt has twice the length
            doubled_score, _ = self._compute_values_and_signature(
                [*predictions, *predictions], [*golds, *golds], **options
            )
            means = {k: np.mean(v) for k, v in lists.items() if len(doubled_score[k]) == 2 * len(v)}
            numbers |= means
        columns = {f"{self.name}_{key}": Interval(float(value)) for key, value in numbers.items()}
        if not columns:
            raise UsageError(
                f"score {self.name}: the module returned no number, nor a list of one for each of "
                f"{len(predictions)} answers, under {sorted(values)}"
            )
        signature_parts = (self._origin, signature, "references:first" if takes_first else "")
        return columns, f"{self.name} " + "|".join(filter(None, signature_parts))

    def _compute_values_and_signature(
        self,
        predictions: Sequence[str],
        golds: Sequence[Any],
        **options: Any,
    ) -> tuple[dict[str, Any], str]:
        """Calls the module once; returns its values and its signature ("" if it has none)."""
        try:
            reference_arguments = {"references": list(golds)} if self._kinds else {}
            result = self._module.compute(
                predictions=list(predictions),
                **reference_arguments,
                **options,
            )
        except Exception as error:
            # The module's code is the user's or the hub's, so it may raise anything.
            reason = to_one_line(error, 300)
            last_frame = extract_tb(error.__traceback__)[-1]
            file_name = Path(last_frame.filename).name
            location = f"{file_name}, line {last_frame.lineno}: {type(error).__name__}"
            raise UsageError(f"score {self.name}: {location}: {reason}") from error
        if not isinstance(result, Mapping):
            got = type(result).__name__
            raise UsageError(f"score {self.name}: the module returned {got}, not a dict of numbers")
        values = dict(result)
        return values, str(values.pop("signature", ""))

    def _accepts_multiple_references(self) -> bool:
        """Returns whether the module takes several references per prompt."""
        list_types = {"Sequence", "List", "LargeList"}
        return any(
            isinstance(kind, list) or type(kind).__name__ in list_types for kind in self._kinds
        )


@cache
def make_word_splitter(tokenize: str | None, latin_only: bool) -> Callable[[str], list[str]]:
    """Returns a function that splits a text into lower-case words as sacrebleu's tokenizer
    ``tokenize`` does. None stands for sacrebleu's 13a; with ``latin_only``, for words of Latin
    letters and digits alone, as in rouge-score. Raises UsageError if there is no such tokenizer, or
    its package or file is missing.
    """
    from sacrebleu.metrics.bleu import BLEU

    if latin_only and tokenize is None:
        return lambda text: re.findall("[a-z0-9]+", text.lower())
    try:
        split = BLEU(tokenize=tokenize).tokenizer
    except Exception as error:
        names = f"task.tokenize must be one of {', '.join(BLEU.TOKENIZERS)}, got {tokenize}"
        raise UsageError(f"{names}: {to_one_line(error)}") from error
    return lambda text: split(text.lower()).split()


def make_rouge_scorer(rouge_types: Sequence[str], tokenize: str | None) -> tuple[Any, str]:
    """Makes rouge-score's scorer; returns it with a text of its version and tokenizer."""
    from rouge_score.rouge_scorer import RougeScorer  # imports all of nltk

    tokenizer = SimpleNamespace(tokenize=make_word_splitter(tokenize, True))
    signature = f"tok:{tokenize}|" if tokenize else ""
    return RougeScorer(
        rouge_types, tokenizer=tokenizer
    ), f"{signature}version:{version('rouge-score')}"


def rouge(predictions: list[str], references: list[list[str]], tokenize: Any) -> dict[str, Any]:
    """F1 of ROUGE-1, -2, -L, -Lsum by rouge-score, words by task.tokenize; the best reference."""
    scorer, signature = make_rouge_scorer(TYPES, tokenize)
    best = [scorer.score_multi(*pair) for pair in zip(references, predictions, strict=True)]
    scores = {name: sum(b[name].fmeasure for b in best) / len(best) for name in TYPES}
    return {**scores, "signature": f"rouge-score F1|{signature}"}


def sacrebleu(predictions: list[str], references: list[list[str]], tokenize: Any) -> dict[str, Any]:
    """BLEU by sacrebleu and its parts, 0..100, words by task.tokenize."""
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(tokenize=tokenize)
    # One stream per reference; None if a prompt has fewer.
    corpus = scorer.corpus_score(predictions, [list(s) for s in zip_longest(*references)])
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    values = {name: getattr(corpus, name) for name in names}
    return {**values, "signature": str(scorer.get_signature())}


# They return the same keys and scales as the hub's modules of these names, without a network.
SHIPPED = {
    compute.__name__: SimpleNamespace(compute=compute, features={"references": [str]})
    for compute in (rouge, sacrebleu)
}


FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The functions ``compute`` that this process gave names to, from Python."""
_loaded_modules = dict[str, tuple[str, ModuleScore]]()
"""Score -> its code when it was loaded last, and the module."""


def read_score_source(score: str) -> str:
    """Returns the code of a score's own file or function; "" where it has none."""
    if score in FUNCTIONS:
        return own_code.read_function_code_and_values(FUNCTIONS[score])
    file = _find_score_file(score)
    return own_code.read_code_of_file(file) if file else ""


def _find_score_file(score: str) -> Path | None:
    """Returns the file that a score names, or its folder does; None for ours and the hub's."""
    path = Path(score).expanduser()
    if path.suffix == ".py":
        return path
    module_file = path / f"{path.name}.py"
    return module_file if score not in SHIPPED and module_file.is_file() else None


def load_module_score(score: str, known_scores: tuple[str, ...] = ()) -> ModuleScore:
    """The module of that name, path or hub id; loaded once per process, a file once more when it
    has changed. ``known_scores`` are the scores that are no modules, for the message. Raises
    ValueError: there is no such file, or the hub does not have it or cannot be reached.
    """
    if score in FUNCTIONS:
        compute = FUNCTIONS[score]
        code = own_code.digest_code(
            [own_code.read_function_code_and_values(compute, with_run_mark=False)], 8
        )
        return ModuleScore(score.lower(), _wrap_compute_as_module(compute), f"function|code:{code}")
    code = read_score_source(score)
    if score not in _loaded_modules or _loaded_modules[score][0] != code:
        _loaded_modules[score] = code, _load_evaluate_module(score, known_scores, code)
    return _loaded_modules[score][1]


def _load_evaluate_module(score: str, known_scores: tuple[str, ...], code: str) -> ModuleScore:
    import evaluate

    file = _find_score_file(score)
    origin = "spec_bench" if score in SHIPPED else "local" if file else "hub"
    if file and not file.exists():
        raise UsageError(f"score {score!r}: there is no such file")
    try:
        if file and score in _loaded_modules:
            own_code.forget_imports(file)
        module = SHIPPED.get(score) or (file and _run_file_for_compute(file))
        if module is None:
            evaluate.config.HF_EVALUATE_OFFLINE = (
                origin == "hub" and not probe_hub_and_set_offline()
            )
            path_or_name = str(Path(score).expanduser().resolve()) if file else score
            module = evaluate.load(path_or_name, keep_in_memory=True)
    except Exception as error:
        # Loading runs the module's own code: anything may be raised.
        reason = to_one_line(error, 200)
        if isinstance(error, TypeError) and "NoneType" in reason:
            reason = (
                "it has neither a function compute nor a class that derives from evaluate.Metric"
            )
        if origin == "hub":
            error_text = "" if isinstance(error, FileNotFoundError) else f" ({reason})"
            reason = f"no score of ours, no file, and the hub did not give it{error_text}"
        choices = [*known_scores, *SHIPPED]
        raise UsageError(
            f"score {score!r}: {reason}{format_suggestion(score, choices)}; without a network: "
            f"{', '.join(choices)}, or a metric module's path"
        ) from error
    if file:
        origin += f"|code:{own_code.digest_code([code], 8)}"
    return ModuleScore(get_column_prefix(score), module, f"evaluate:{version('evaluate')}|{origin}")


def get_column_prefix(score: str) -> str:
    """Returns the prefix of a module's columns: the last part of its path or id in lower case, with
    ``_`` for letters that a column's name cannot have.
    """
    tail = score.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py")
    return re.sub(r"\W+", "_", tail).strip("_").lower()


def _run_file_for_compute(file: Path) -> SimpleNamespace | None:
    """Returns a file's function ``compute`` as a module of ``evaluate`` looks; None without one."""
    body = ast.parse(file.read_text(encoding="utf-8"), str(file)).body
    if not any(
        isinstance(statement, ast.FunctionDef) and statement.name == "compute" for statement in body
    ):
        return None
    return _wrap_compute_as_module(runpy.run_path(str(file))["compute"])


def _wrap_compute_as_module(compute: Callable[..., Any]) -> SimpleNamespace:
    references_parameter = inspect.signature(compute).parameters.get("references")
    return SimpleNamespace(
        compute=compute,
        features={} if references_parameter is None else {"references": [str]},
        optional=references_parameter is not None
        and references_parameter.default is not references_parameter.empty,
    )


def _is_number_or_bool(value: Any) -> bool:
    return isinstance(value, Real | np.number | np.bool_)  # True is 1
