"""Probes the Hugging Face hub, and sets its libraries offline while it does not answer."""

import logging
from time import monotonic

_RETRY_S = 60  # from a failure until the hub is probed again
_failure_times_s: list[float] = []  # monotonic times, the last failure last


def probe_hub_and_set_offline() -> bool:
    """Returns whether the hub answers. Sets its libraries offline while it does not, because each
    of them would retry for half a minute and print lines of its own.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if constants.HF_HUB_OFFLINE and (
        not _failure_times_s or monotonic() - _failure_times_s[-1] < _RETRY_S
    ):
        return False  # offline by the user's choice, or after a recent failure
    try:
        constants.HF_HUB_OFFLINE = False
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the library's client raises
        constants.HF_HUB_OFFLINE = True
        _failure_times_s.append(monotonic())
    return not constants.HF_HUB_OFFLINE
