"""The system's C compiler, which doesn't compile a source again that it has compiled with the same headers and options,
without a warning: bundles differ in their tables alone. `tests/conftest.py` puts it on the path.

    python tests/compiler.py COMPILER FOLDER WORD...     the words are the compiler's; objects are kept in the folder
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

HEADERS = "-I"  # the option that names a folder of them
MACRO = "-D"  # and the one that defines a macro
STRICT = "-Werror"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
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
            done = subprocess.run([compiler, *compiling, "-c", source, "-o", new], stderr=subprocess.PIPE)
            if done.returncode:
                os.write(2, done.stderr)
                return done.returncode
            if done.stderr:  # is said each time, by the command itself
                os.remove(new)
                continue
            os.replace(new, kept)
        objects[source] = str(kept)
    return subprocess.run([compiler, *(objects.get(word, word) for word in words)]).returncode


def _key(compiler, options, source):
    """Hash of what an object without warnings depends on: the source, the headers that it includes, options, and those
    macros among them that it reads."""
    folders = [Path(source).parent]
    rest = [compiler]
    for option, before in zip(options, ["", *options], strict=False):
        if before == HEADERS or (option.startswith(HEADERS) and option != HEADERS):
            folders.append(Path(option.removeprefix(HEADERS)))
        elif option != HEADERS:
            rest.append(option)
    text = "".join(_texts(Path(source), folders, set()))
    rest = [option for option in rest if option != STRICT and _matters(option, text)]
    return hashlib.sha256("\0".join([*rest, text]).encode()).hexdigest()


def _texts(file, folders, seen):
    """Texts of a file and of the headers that it includes, each once."""
    seen.add(file)
    text = file.read_text()
    yield text
    for name in INCLUDE.findall(text):
        header = next((path for folder in folders if (path := folder / name).exists()), None)
        if header and header not in seen:
            yield from _texts(header, folders, seen)


def _matters(option, text):
    """True but for a macro that isn't in the text; the system's headers read some that begin with _."""
    name = option.removeprefix(MACRO).partition("=")[0]
    return name in text or not option.startswith(MACRO) or name.startswith("_")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
