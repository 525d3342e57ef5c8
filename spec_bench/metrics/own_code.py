"""The code behind a user's own metrics as text, so that other code is seen as such.

A file's code is its text and that of the files of its folder, or of the folders that Python imports
from, that it imports; a package's is all its Python files. A function given in Python also depends
on what it closes over and on its globals: numbers and texts among these are part of its code;
whether anything else changed is unknown, so every run is taken to have other code. A data file that
a text of the code names, such as a lexicon beside it, is part of the code by its digest.
"""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import invalidate_caches
from itertools import product
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from uuid import uuid4

from spec_bench.system.code_digests import get_source_or_bytecode
from spec_bench.system.file_digests import hash_file_with_cache

_OURS = __name__.partition(".")[0]
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))
_run_marks = [uuid4().hex]


def renew_run_mark() -> None:
    """Renews the mark in the code of functions that may have changed unseen: a new run begins."""
    _run_marks[0] = uuid4().hex


def digest_code(texts: Sequence[str], digits: int) -> str:
    """Returns a digest of code; "" of none."""
    known_texts = [text for text in texts if text]
    return hashlib.sha256("\0".join(known_texts).encode()).hexdigest()[:digits] * bool(known_texts)


def read_code_of_file(file: Path) -> str:
    """Reads a file and what it imports from beside it; "" where there is no such file."""
    return _read_python_files(list_files_of_code(file))


def list_files_of_code(file: Path) -> list[Path]:
    """Lists a Python file and those that it imports, itself first; none of installed packages."""
    roots = [Path(path or ".") for path in sys.path if not path.startswith(_LIBRARIES)]
    code_files = dict.fromkeys([file.resolve()] if file.is_file() else [])
    todo = list(code_files)
    while todo:
        path = todo.pop()
        for level, name in _iter_imports(_read_text(path)):
            folders = [path.parents[level - 1]] if level else [file.resolve().parent, *roots]
            imported_files = [p for p in _find_module_files(folders, name) if p not in code_files]
            code_files |= dict.fromkeys(imported_files)
            todo += imported_files
    return list(code_files)


def forget_imports(file: Path) -> None:
    """Makes this process import what a file imports once more, as it may have changed."""
    files = set(list_files_of_code(file)[1:])
    for name, module in list(sys.modules.items()):
        module_file = getattr(module, "__file__", None)
        if module_file and Path(module_file).resolve() in files:
            del sys.modules[name]
    invalidate_caches()


def _list_nodes(text: str) -> list[ast.AST]:
    try:
        return [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError):  # running it will say so
        return []


def _iter_imports(text: str) -> Iterator[tuple[int, str]]:
    """Yields the modules that a file may import, each with its number of leading dots."""
    for node in _list_nodes(text):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module_name = node.module or ""
            for alias in node.names:
                yield node.level, f"{module_name}.{alias.name}".strip(".")


def _read_python_files(paths: Iterable[Path]) -> str:
    """Reads Python files, with the digests of the data files that they name."""
    texts = []
    for path in paths:
        text = _read_text(path)
        constants = [node.value for node in _list_nodes(text) if isinstance(node, ast.Constant)]
        texts += [text, *_iter_data_digests(constants, path.parent)]
    return "\0".join(texts)


def _iter_data_digests(values: Iterable[Any], folder: Path) -> Iterator[str]:
    """Yields the digests of the files that texts among the values name, as seen from a folder and
    from here.
    """
    names = sorted({value for value in values if isinstance(value, str)})
    for name, root in product(names, dict.fromkeys((folder.resolve(), Path().resolve()))):
        with suppress(OSError, ValueError):  # no file that can be read has this name
            yield hash_file_with_cache(root / name)


def _find_module_files(folders: Sequence[Path], name: str) -> Iterator[Path]:
    """Yields the files that importing a name runs, its packages' first; none of ours."""
    parts = [] if name.partition(".")[0] == _OURS else name.split(".")
    for depth in range(1, len(parts) + 1):
        for folder in folders:
            place = folder.joinpath(*parts[:depth])
            file = next(
                filter(Path.is_file, (place / "__init__.py", place.with_suffix(".py"))), None
            )
            if file:
                yield file.resolve()
                break


def read_foreign_code(metric_or_score: Any) -> str:
    """Reads the code of a metric or score that is not ours, with its package's; "" of ours."""
    function = getattr(metric_or_score, "func", metric_or_score)
    top_name = function.__module__.partition(".")[0]
    if top_name == _OURS:
        return ""
    if top_name in sys.stdlib_module_names:  # as `len`
        return get_source_or_bytecode(function)
    arguments = [getattr(metric_or_score, name, None) for name in ("args", "keywords")]
    package_code = _read_package(top_name)
    return f"{read_function_code_and_values(function, not package_code)}{arguments}{package_code}"


@cache
def _read_package(name: str) -> str:
    """Reads the code of a package or module, as this process imported it; "" of a script's or a
    notebook's own functions.
    """
    module = sys.modules.get(name)
    folders = sorted({*getattr(module, "__path__", ())})
    if folders:
        files = [path for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
        return _read_python_files(files)
    file = getattr(module, "__file__", None)
    return read_code_of_file(Path(file)) if file and name != "__main__" else ""


def read_function_code_and_values(function: Any, with_run_mark: bool = True) -> str:
    """Returns the source of a function or class, with the numbers and texts that it uses and the
    digests of the data files that these name; with ``with_run_mark`` also the mark of this run, if
    it uses what may have changed unseen.
    """
    used_values = dict(_iter_used_values(function))
    plain_values = {
        name: repr(used_value)
        for name, used_value in used_values.items()
        if isinstance(used_value, complex | float | int | str | bytes | None)
    }
    has_unseen = not hasattr(function, "__code__") or any(
        name not in plain_values and used_value is not function and not _is_of_library(used_value)
        for name, used_value in used_values.items()
    )
    mark = _run_marks[0] if with_run_mark and has_unseen else ""
    codes = [*_iter_codes(function.__code__)] if hasattr(function, "__code__") else []
    constants = [constant for code in codes for constant in code.co_consts]
    in_tuples = [text for constant in constants if isinstance(constant, tuple) for text in constant]
    folder = Path(codes[0].co_filename).parent if codes else Path()
    digests = _iter_data_digests([*constants, *in_tuples, *used_values.values()], folder)
    return f"{get_source_or_bytecode(function)}{plain_values or ''}{mark}{''.join(digests)}"


def _iter_used_values(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields by name what a function depends on besides its arguments: the object that it is bound
    to, its defaults, what it closes over, its globals.
    """
    if (code := getattr(function, "__code__", None)) is None:
        return
    if hasattr(function, "__self__"):
        yield "self", function.__self__
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from ((f"default {place}", value) for place, value in enumerate(defaults))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield name, cell.cell_contents
    for name in (name for each in _iter_codes(code) for name in each.co_names):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _iter_codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a function's bytecode and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_codes(constant)


def _is_of_library(component: Any) -> bool:
    """Returns whether a module, class or function is ours, Python's or an installed package's."""
    if not isinstance(component, type | ModuleType | FunctionType | BuiltinFunctionType):
        return False
    name = component.__name__ if isinstance(component, ModuleType) else component.__module__
    top_name = str(name).partition(".")[0]
    file = getattr(sys.modules.get(top_name), "__file__", None)
    return top_name in (_OURS, *sys.stdlib_module_names) or str(file).startswith(_LIBRARIES)


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
