"""Formats numbers with their intervals; does not know how they are computed."""


def format_count(number: float, noun: str) -> str:
    """Formats a count with its noun: ``1 prompt``, ``3 prompts``."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def format_interval(value: float, low: float | None, high: float | None, form: str) -> str:
    """Formats ``value [low, high]``, each by a format such as ``.2f``; the value alone if an end is
    None or NaN.
    """
    return f"{value:{form}} {format_ends(low, high, form)}".rstrip()


def format_ends(low: float | None, high: float | None, form: str, pattern: str = "[{}, {}]") -> str:
    """Formats both ends of an interval; "" if one of them is None or NaN."""
    if low is None or high is None or low != low or high != high:
        return ""
    return pattern.format(f"{low:{form}}", f"{high:{form}}")
