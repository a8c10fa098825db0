"""Programs that need TensorFlow, run in forks of one process that has imported it: an import takes 4 s of a processor.

    python forks.py SOCKET                      serve, until standard input ends
    python forks.py SOCKET PROGRAM ARGUMENT...  run a program, a file or `-c` and its text, as python would

A program has the standard streams, the folder and the environment of the second process, which ends as it does.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

LIMIT = 2**20  # bytes of a request


def serve(address: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        for name in ("tensorflow", "tensorflow_datasets"):
            with suppress(ImportError):
                __import__(name)
        gc.freeze()
        while sys.stdin not in (ready := select.select([server, sys.stdin], [], [])[0]):
            connection, _ = server.accept()
            if ready and os.fork() == 0:
                server.close()
                _run(connection)
            connection.close()


def _run(connection: socket.socket) -> None:
    """Run what is asked for, and end."""
    request, streams, *_ = socket.recv_fds(connection, LIMIT, 3)
    for stream, number in enumerate(streams):
        os.dup2(number, stream)
        os.close(number)
    asked = json.loads(request)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 0
    try:
        program, *sys.argv[1:] = asked["program"]
        if program == "-c":
            exec(compile(sys.argv.pop(1), "-c", "exec"), {"__name__": "__main__"})
        else:
            sys.path.insert(0, str(Path(program).parent))
            sys.argv[0] = program
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(bytes([status]))
    os._exit(status)


def run(address: str, *program: str) -> int:
    """Have a program run in a fork; returns its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = {"program": program, "environment": dict(os.environ), "folder": os.getcwd()}
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        answer = connection.recv(1)
        return answer[0] if answer else 70  # it died


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(run(*sys.argv[1:]))
