"""Whether the Hugging Face hub answers; where it does not, its libraries do not ask it again."""

import logging
from time import monotonic

_AGAIN_S = 60  # after which it is asked anew
_last: dict[str, float | bool] = {}  # when it was asked, and whether it was silent


def hub_reached() -> bool:
    """Returns whether the hub answers. Until it does its libraries look into their cache alone:
    each would ask again for half a minute, in lines of its own.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if constants.HF_HUB_OFFLINE and not _last.get("silent"):
        return False  # the user's choice
    if not _last or monotonic() - _last["asked"] > _AGAIN_S:
        constants.HF_HUB_OFFLINE = False
        try:
            get_session().head(constants.ENDPOINT, timeout=5)
        except Exception:  # whatever the library's client raises
            constants.HF_HUB_OFFLINE = True
        _last.update(asked=monotonic(), silent=constants.HF_HUB_OFFLINE)
    return not _last["silent"]
