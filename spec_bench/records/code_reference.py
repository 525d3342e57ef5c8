"""The tests of a program: tasks read them, metrics run them."""

from __future__ import annotations


class CodeReference(str):
    """Tests as a text that defines ``check``, and what they are run on.

    Attributes:
        prompt: the program's beginning, which the answer completes.
        entry_point: the function that ``check`` is called with.
    """

    prompt: str
    entry_point: str

    def __new__(cls, tests: str, prompt: str, entry_point: str) -> CodeReference:
        """The tests with their program."""
        reference = super().__new__(cls, tests)
        reference.prompt, reference.entry_point = prompt, entry_point
        return reference
