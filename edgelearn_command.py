"""The `edgelearn` command. Importing the library takes a moment: Ctrl-C ends it there without a traceback."""

import os
import signal


def main() -> int:
    """Run `edgelearn.cli.main`."""

    def interrupted(number, frame):
        os.write(2, b"edgelearn: interrupted\n")
        os._exit(130)

    before = signal.signal(signal.SIGINT, interrupted)
    from edgelearn.cli import main

    signal.signal(signal.SIGINT, before)
    return main()
