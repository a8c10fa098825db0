"""The system's C compiler, which doesn't compile a source again that it has compiled with the same headers and options:
bundles differ in their tables alone. `tests/conftest.py` puts it on the path.

    python tests/compiler.py COMPILER FOLDER WORD...     the words are the compiler's; objects are kept in the folder
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HEADERS = "-I"  # the option that names a folder of them
LINKING = ("-l", "-Wl,")  # beginnings of the linker's options


def main(compiler, folder, *words):
    sources = [word for word in words if word.endswith(".c")]
    if len(sources) < 2 or "-o" not in words:
        return subprocess.run([compiler, *words]).returncode
    output = words.index("-o")
    options = [word for word in (*words[:output], *words[output + 2 :]) if word not in sources]
    compiling = [word for word in options if word not in ("-shared", "-s") and not word.startswith(LINKING)]
    objects = {}
    for source in sources:
        kept = Path(folder, f"{_key(compiler, compiling, source)}.o")
        if not kept.exists():
            new = f"{kept}.{os.getpid()}"  # another process may be making the same
            done = subprocess.run([compiler, *compiling, "-c", source, "-o", new])
            if done.returncode:
                return done.returncode
            os.replace(new, kept)
        objects[source] = str(kept)
    return subprocess.run([compiler, *(objects.get(word, word) for word in words)]).returncode


def _key(compiler, options, source):
    """Hash of what an object depends on: folders of headers stand for their contents."""
    found, folders, rest = hashlib.sha256(), [Path(source).parent], [compiler]
    for option, before in zip(options, ["", *options], strict=False):
        if before == HEADERS or (option.startswith(HEADERS) and option != HEADERS):
            folders.append(Path(option.removeprefix(HEADERS)))
        else:
            rest.append(option)
    headers = (path for folder in folders for path in sorted(folder.glob("*.h")))
    for text in ("\n".join(rest).encode(), *(path.read_bytes() for path in (Path(source), *headers))):
        found.update(hashlib.sha256(text).digest())
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
