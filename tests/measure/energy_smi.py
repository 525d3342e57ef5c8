"""A program that answers as ``nvidia-smi`` does and plays known power curves.

Run as a subprocess: what it plays stands in the environment variable ``SMI_STAND_IN`` as JSON:

* ``curves``: one mapping of ``Curve``'s fields a GPU;
* ``unknown``: fields that this driver does not know; ``unsupported``: fields it gives as [N/A];
* ``averaged``: power.draw is the mean of the last second, as on GPUs since Ampere;
* ``dies_of``: a loop ends with status 3 when this file is there, and takes it away;
* ``deaf``: it goes on when nobody reads what it prints, and leaves its process id in this file;
* ``broken``: every call fails as without a driver.

Standard library only, so that it starts quickly.
"""

import json
import os
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

VARIABLE = "SMI_STAND_IN"


def install(folder):
    """Puts it into a folder, which a test puts on PATH, under the name of the real one."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S -E '{__file__}' \"$@\"\n")
    program.chmod(0o755)


def main():
    plan = json.loads(os.environ[VARIABLE])
    options = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if plan.get("broken"):
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    assert options["--format"] == "csv,noheader,nounits"
    fields = options["--query-gpu"].split(",")
    known = {"timestamp", "index", "uuid", "power.draw", "power.draw.instant"}
    for field in fields:
        if field not in known - set(plan.get("unknown", ())):
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    gpus = range(len(plan["curves"]))
    chosen = [int(index) for index in options["--id"].split(",")] if "--id" in options else gpus
    if "deaf" in plan and "--loop-ms" in options:
        Path(plan["deaf"]).write_text(str(os.getpid()))
    while True:
        for gpu in chosen:
            with suppress(OSError if "deaf" in plan else ()):
                print(", ".join(cell(plan, field, gpu) for field in fields), flush=True)
        if "--loop-ms" not in options:
            return 0
        time.sleep(int(options["--loop-ms"]) / 1000)
        if "dies_of" in plan and os.path.exists(plan["dies_of"]):
            os.unlink(plan["dies_of"])
            return 3


def cell(plan, field, gpu):
    """One value as the program prints it."""
    now = datetime.now()
    if field in plan.get("unsupported", ()):
        return "[N/A]"
    if field == "timestamp":
        return now.strftime("%Y/%m/%d %H:%M:%S.") + f"{now.microsecond // 1000:03d}"
    if field == "index":
        return str(gpu)
    if field == "uuid":
        return f"GPU-{gpu}0000000-stand-in"
    curve, now_s = Curve(**plan["curves"][gpu]), now.timestamp()
    if plan.get("averaged") and field == "power.draw":
        return f"{curve.energy_j(now_s - 1, now_s):.2f}"
    return f"{curve.power_w(now_s):.2f}"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from energy_curves import Curve

    sys.exit(main())
