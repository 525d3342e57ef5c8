"""Limits of time and memory for others' templates, tokenizers and servers."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
_MEMORY_FILE = Path("/proc/self/statm")  # only Linux enforces such a limit


def call_with_timeout(seconds: float, function: Callable[[], Result]) -> Result:
    """Calls a function in a thread and returns its result. Raises TimeoutError after ``seconds``;
    the thread then goes on, and its result is dropped.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"no whole answer within {seconds:g} s")
    return future.result()


@contextmanager
def limited_memory(extra_bytes: int) -> Iterator[None]:
    """Limits the block to ``extra_bytes`` more memory, beyond which it gets a MemoryError. Has no
    effect on systems other than Linux.
    """
    if not _MEMORY_FILE.exists():
        yield
        return
    import resource

    old_limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(_MEMORY_FILE.read_text().split()[0])
    lowest = min(limit for limit in old_limits if limit >= 0) if max(old_limits) >= 0 else 2**63 - 1
    new_limit = min(lowest, pages * os.sysconf("SC_PAGE_SIZE") + extra_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (new_limit, old_limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old_limits)
