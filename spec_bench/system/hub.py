"""Whether the Hugging Face hub answers; where it does not, its libraries do not ask it again."""

import logging
from time import monotonic

_RETRY_S = 60  # from a failure until the hub is asked again
_failure_times_s: list[float] = []  # of the clock, the last failure is the last entry


def probe_hub_and_set_offline() -> bool:
    """Checks whether the hub answers, and sets its libraries offline while it does not: each would
    ask again for half a minute, in lines of its own.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if constants.HF_HUB_OFFLINE and (
        not _failure_times_s or monotonic() - _failure_times_s[-1] < _RETRY_S
    ):
        return False  # by the user's choice, or a moment ago
    try:
        constants.HF_HUB_OFFLINE = False
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the library's client raises
        constants.HF_HUB_OFFLINE = True
        _failure_times_s.append(monotonic())
    return not constants.HF_HUB_OFFLINE
