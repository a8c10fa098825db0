"""The process behind `Worker`: makes the object and answers calls from standard input, a line of JSON each.

    python -m edgelearn.lab.measure_worker SETTINGS

Answers go to standard output; whatever else the process prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from edgelearn.errors import EdgelearnError

from .measure import bind


def _answer(work: Callable[..., Any], *arguments: Any) -> bytes:
    """Result or error of a call, as a line."""
    try:
        line = json.dumps({"result": work(*arguments)})
    except EdgelearnError as error:
        line = json.dumps({"error": traceback.format_exc(), "reason": str(error)})
    except Exception:
        line = json.dumps({"error": traceback.format_exc()})
    return line.encode() + b"\n"


def main(settings: dict[str, Any]) -> None:
    """Serve until standard input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    made: list[Any] = []

    def make() -> float:
        begin = time.perf_counter()
        if settings["cores"]:
            bind(settings["cores"])
        module, _, name = settings["target"].partition(":")
        made.append(getattr(importlib.import_module(module), name)(*settings["arguments"]))
        return time.perf_counter() - begin

    answers.write(_answer(make))
    for line in requests:
        method, *arguments = json.loads(line)
        answers.write(_answer(getattr(made[0], method), *arguments))
    # Frameworks leave threads behind that can hang or crash an orderly exit; nothing here needs one.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
