"""Whether the Hugging Face hub answers; where it does not, its libraries do not ask it again."""

import logging
from time import monotonic

_AGAIN_S = 60  # after which it is asked anew
_silent: list[float] = []  # when it last was


def probe_hub_and_set_offline() -> bool:
    """Checks whether the hub answers, and sets its libraries offline while it does not: each would
    ask again for half a minute, in lines of its own.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if constants.HF_HUB_OFFLINE and (not _silent or monotonic() - _silent[-1] < _AGAIN_S):
        return False  # by the user's choice, or a moment ago
    try:
        constants.HF_HUB_OFFLINE = False
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the library's client raises
        constants.HF_HUB_OFFLINE = True
        _silent.append(monotonic())
    return not constants.HF_HUB_OFFLINE
