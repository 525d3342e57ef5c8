"""Computes digests of the code of another package's rule, policy or drafter: its Python files.

Files are digested when a definition is registered, which is when its module is loaded. A process
decodes with that code even if the files change later.
"""

import hashlib
import inspect
import sys
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from spec_bench.system.file_digests import hash_file_with_cache

_OURS = __name__.partition(".")[0]


@cache
def read_package_code_digests(definition: Any) -> dict[str, str]:
    """Returns the SHA-256, by path, of every Python file of the top-level package that defines a
    class or function, or of its single module. For a definition without a file it is the digest of
    its text. Empty for definitions of this package. Raises OSError if a file cannot be read.
    """
    module_name = definition.__module__
    if module_name == "__main__":
        spec = getattr(sys.modules[module_name], "__spec__", None)
        module_name = spec.name if spec is not None and "." in spec.name else module_name
    package_name = module_name.partition(".")[0]
    if package_name == _OURS:
        return {}
    package = sys.modules.get(package_name)
    folders = [*getattr(package, "__path__", ())]
    module_file = Path(getattr(package, "__file__", None) or "")
    paths = {module_file.name: module_file} if module_file.suffix == ".py" and not folders else {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            name = path.relative_to(folder)
            if not any(part.startswith((".", "__pycache__")) for part in name.parts):
                paths[f"{package_name}/{name.as_posix()}"] = path
    if digests := {
        name: hash_file_with_cache(path) for name, path in paths.items() if path.is_file()
    }:
        return digests
    text = get_source_or_bytecode(definition)
    return {definition.__qualname__: hashlib.sha256(text.encode()).hexdigest()}


def get_source_or_bytecode(definition: Any) -> str:
    """Returns the source of a function or class, or what it was compiled to."""
    try:
        return inspect.getsource(definition)
    except (OSError, TypeError):  # typed in, without a file
        functions = [definition, *getattr(definition, "__dict__", {}).values()]
        codes = [getattr(function, "__code__", None) for function in functions]
        return repr([_list_code(code) for code in codes if code is not None] or definition)


def _list_code(code: CodeType) -> list[Any]:
    """Lists bytecode, names and constants of a compiled function, without addresses."""
    constants = [_list_code(c) if isinstance(c, CodeType) else c for c in code.co_consts]
    return [code.co_code, code.co_names, constants]
