"""The command `edgelearn`, killed at one of its calls that change files; run as a script by kills.py.

    killed_command.py NUMBER [argument of the command ...]     kill -9 at call NUMBER; 0: never

A write that is killed gets half of its bytes through. Without a kill, the last line on stderr is the number of calls.
"""

import itertools
import os
import signal
import sys

CALLS = ("write", "fsync", "replace", "rename", "ftruncate")


def kill_at(number, calls=CALLS):
    """Count the calls of `calls`, functions of os, and kill this process at one of them; a write gets half of its bytes
    through. Returns the counter."""
    counter = itertools.count(1)

    def counting(name, call):
        def wrapper(*arguments, **options):
            if next(counter) == number:
                if name == "write":
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for name in calls:
        setattr(os, name, counting(name, getattr(os, name)))
    return counter


if __name__ == "__main__":
    from edgelearn.cli import main

    counter = kill_at(int(sys.argv[1]))
    status = main(sys.argv[2:])
    print(next(counter) - 1, file=sys.stderr)
    sys.exit(status)
