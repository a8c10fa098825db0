"""Tests see the results of tuning that are shipped, and none of the user's own. A process compiles each program once,
not again for the binaries that would be kept. No features of sound are kept; recordings are decoded when they are used.
Tables are as wide as without a terminal. A kernel that a compiler warns of fails the test that builds it, and an answer
with other entries than the manual lists the test that runs the command."""

import ctypes
import gc
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache, wraps
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import pytest
from PIL import Image

from edgelearn.bundles import native
from edgelearn.runtime import driver, kernels
from tests import few_tiles

pytest_plugins = ["tests.workers"]

# Bytecode is kept whatever the environment says: else each process that a test starts compiles the package, for 1.5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
sys.modules["rfc3987_syntax"] = None  # pyright: ignore  # or jsonschema makes parsers of addresses with it, for 2.5 s

# Files that take longest, longest first: the processes that share the tests begin with them, and end together.
SLOW = (
    "tests/notebooks/test_notebooks.py", "tests/notebooks/test_browser.py", "tests/experiments/test_memory.py",
    "tests/models/test_against_keras.py", "tests/ops/test_linear.py", "tests/ops/test_quantized.py",
    "tests/bundles/test_plain.py", "tests/experiments/test_flowers_resume.py", "tests/cli/test_cli.py",
    "tests/cli/test_cli_memory.py", "tests/cli/test_cli_keywords.py", "tests/lab/bench/test_peers.py",
    "tests/ops/test_ops.py", "tests/ops/test_tiles.py", "tests/docs/test_examples.py",
    "tests/experiments/test_federated.py", "tests/interop/test_imported_files.py", "tests/torture/test_torture.py",
    "tests/lab/bench/test_run.py", "tests/experiments/test_federated_engines.py", "tests/interop/test_converters.py",
    "tests/compile/test_ops_in_networks.py", "tests/compile/test_planner.py",
)  # fmt: skip
# Folders and files whose tests are about networks, not about tiles, and don't compare bits with another process's
SHARED = (
    "compile", "keywords", "models", "test_augmentation.py", "test_cli_keywords.py", "test_cli_memory.py",
    "test_cli_precision.py", "test_digits.py", "test_keywords_check.py", "test_memory.py", "test_personalisation.py",
    "test_precision_job.py", "test_thicket.py", "train",
)  # fmt: skip
# Folders and files whose kernels compute less than PoCL takes to optimise them: half of its time for a program. Runs of
# commands and of notebooks, and all of another processor (tests/processors.py), run as PoCL optimises them; trainings
# that take longer than their kernels' compilation too. Compilers for boards would take GNU's faster linker for theirs.
UNOPTIMISED = (
    "bench", "compile", "federated", "models", "ops", "runtime", "train", "test_adaptation.py", "test_augmentation.py",
    "test_characters.py", "test_cli_memory.py", "test_client.py", "test_combinations.py",
    "test_depth.py", "test_digits.py", "test_examples.py", "test_exports.py", "test_finetune.py",
    "test_imported_files.py", "test_intents.py", "test_keywords_check.py", "test_keywords_embedding.py",
    "test_language.py", "test_learners.py", "test_linked.py", "test_llama.py", "test_memory.py", "test_onnx.py",
    "test_opencl.py", "test_personalisation.py", "test_plain.py", "test_precision_job.py", "test_profile.py",
    "test_serial_depth.py",
)  # fmt: skip
ROOT = Path(__file__).parents[1]  # which is on the path of processes that tests start
FLAGS, NOT_OPTIMISED = "POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable"
GETENV = ctypes.CDLL(None).getenv  # of C, which PoCL asks
GETENV.restype = ctypes.c_char_p
GIVEN = GETENV(FLAGS.encode())
WHOLE = ("00_start_here", "07_keywords")  # notebooks that a browser runs from top to bottom without --all-notebooks
SPEAKING = ("cli", "experiments", "keywords", "widgets")  # folders whose tests use words that tests/data has tested
CLIPS = 2000  # synthesised ones that are kept, of 64 kB
PROGRAMS = 500  # compiled ones that are kept; PoCL takes 1.3 MB for each


def pytest_addoption(parser):
    parser.addoption("--all-candidates", action="store_true", help="try all candidates of tuning, not a part")
    parser.addoption("--all-notebooks", action="store_true", help="use the controls of all notebooks in a browser")


def pytest_generate_tests(metafunc):
    if "notebook_in_lab" in metafunc.fixturenames:
        every = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
        metafunc.parametrize("notebook_in_lab", every if metafunc.config.getoption("--all-notebooks") else WHOLE)


def pytest_collection_modifyitems(items):
    def place(item):
        file = item.nodeid.partition("::")[0]
        return SLOW.index(file) if file in SLOW else len(SLOW)

    items.sort(key=place)


def pytest_collection_finish():
    """Spare the garbage collector what lives to the end anyway: it took a twentieth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard():
    """By the tests and by what they start, also in the background, whose processes a shell makes deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def _programs_are_shared():
    """By the kernels of all contexts: PoCL takes 150 ms for a program, and 25 ms again in another context. A program
    belongs to an OpenCL context; there is one for each device. `runtime.build.build` itself compiles as ever."""
    from edgelearn.runtime import context, kernels

    compile_new, open_context, contexts, programs = kernels.build, context.open_context, {}, OrderedDict()

    def shared_context(device):
        if device.index not in contexts:
            contexts[device.index] = open_context(device)
        return contexts[device.index]

    def shared_program(own, source, options=()):
        options = [*options, *_optimisation(own.device, options)]
        key = own.device.index, source, tuple(options)
        programs[key] = programs.pop(key, None) or compile_new(own, source, options)
        if len(programs) > PROGRAMS:
            programs.popitem(last=False)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "open_context", shared_context)
        patch.setattr(kernels, "build", shared_program)
        yield


def _optimisation(device, options):
    """Return the option that turns optimisation off in UNOPTIMISED, and for kernels of GPUs on PoCL, where only their
    results matter: the compiler takes a third of the time, which was up to 4 s a kernel. Kernels of CPUs have
    work-groups of one item."""
    off = FLAGS in os.environ or "-DGROUP=1" not in options
    return [NOT_OPTIMISED] if device.platform == driver.POCL and off else []


@pytest.fixture(autouse=True, scope="module")
def _networks_share_kernels(request):
    """In the folders SHARED, by tiles of few sizes; those of a device are in all processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        if {request.path.parent.name, request.path.name} & set(SHARED):
            few_tiles.use(patch.setattr)
        yield


LINKER = """\
#!/bin/sh
case $* in
*" -shared -o "*/tempfile_*)
  for word; do
    shift
    case $word in -lc | -lgcc_s | --*as-needed) ;; *) set -- "$@" "$word" ;; esac
  done ;;
esac
exec {} "$@"
"""


@pytest.fixture(scope="session")
def fast_linker(tmp_path_factory):
    """A folder in which `ld` links PoCL's kernels without the system's libraries, which the process has loaded, in 3 ms
    in place of 11; None if there is no linker."""
    if (linker := shutil.which("ld")) is None:
        return None
    script = tmp_path_factory.mktemp("linker") / "ld"
    script.write_text(LINKER.format(shlex.quote(linker)))
    script.chmod(0o755)
    return script.parent


@pytest.fixture(autouse=True, scope="module")
def _kernels_compile_sooner(request, fast_linker):
    """PoCL has Clang start a linker for each kernel, and Clang looks into COMPILER_PATH first."""
    with pytest.MonkeyPatch.context() as patch:
        if {request.path.parent.name, request.path.name} & set(UNOPTIMISED) and driver.CPU not in os.environ:
            if fast_linker:
                patch.setenv("COMPILER_PATH", str(fast_linker))
            # Only Python's mapping has the variable, a copy of which processes that tests start get: PoCL would keep it
            # for all programs of this process, once it has read it.
            patch.setitem(os.environ._data, os.environ.encodekey(FLAGS), os.environ.encodevalue(NOT_OPTIMISED))
            # Processes that tests start don't leave theirs where trainings in other files would take them.
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pocl" / "kcache"
            kept = Path(os.environ.get("POCL_CACHE_DIR") or caches) / "unoptimised"
            kept.mkdir(parents=True, exist_ok=True)
            patch.setenv("POCL_CACHE_DIR", str(kept))
            patch.setattr(kernels, "_in_use", WeakValueDictionary())
        yield
    assert GETENV(FLAGS.encode()) == GIVEN, f"os.environ gave {FLAGS} to C: change os.environ._data"


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of two classes of five noisy pictures, and a file that is none."""
    root, rng = tmp_path_factory.mktemp("pictures") / "flowers", np.random.default_rng(0)
    for name, color in {"red": (200, 60, 60), "blue": (60, 60, 200)}.items():
        (root / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.clip(np.array(color) + rng.integers(-40, 40, (40, 50, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")
    (root / "red" / "broken.jpg").write_bytes(b"not a picture")
    return root


@pytest.fixture(scope="session")
def speak_once():
    from edgelearn.data import synthetic_words

    keep = lru_cache(CLIPS)(synthetic_words.speak)
    return wraps(synthetic_words.speak)(lambda *arguments: keep(*arguments).copy())


@pytest.fixture(autouse=True, scope="module")
def _words_are_synthesised_once(request, speak_once):
    """In the folders SPEAKING: the sample of an experiment is hundreds of clips of 2 ms each."""
    from edgelearn.data import synthetic_words

    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in SPEAKING:
            patch.setattr(synthetic_words, "speak", speak_once)
        yield


@pytest.fixture(autouse=True, scope="module")
def _recordings_are_decoded_when_used(request):
    """Loading decodes all recordings of EDGELEARN_DATA, to see that it can, for 20 s of a processor. It does so in
    tests/data, too, and skips none."""
    from edgelearn.data import audio

    root, read_labelled = os.environ.get("EDGELEARN_DATA"), audio.read_labelled

    def read_later(folder, words, read, *texts):
        later = root and Path(folder).is_relative_to(root)
        return read_labelled(folder, words, (lambda file, name: None) if later else read, *texts)

    with pytest.MonkeyPatch.context() as patch:
        if "data" not in request.path.relative_to(ROOT).parts:
            patch.setattr(audio, "read_labelled", read_later)
        yield


@pytest.fixture(scope="session")
def python_with_tensorflow(tmp_path_factory):
    """The first words of a command that is as `python`, but has imported TensorFlow: tests/forks.py."""
    command = [sys.executable, str(ROOT / "tests" / "forks.py"), str(tmp_path_factory.mktemp("forks") / "socket")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        while not Path(command[-1]).exists():
            assert server.poll() is None
            time.sleep(0.01)
        yield [command[0], "-S", *command[1:]]


@pytest.fixture(autouse=True, scope="module")
def _blocks_are_measured_once(request):
    """Other tests run meanwhile, so that every block would count as noisy and be measured five times. Tests of
    measurements are in tests/lab."""
    from edgelearn.lab import measure

    take_block = measure.take_block

    def take_once(take_sample, cores, config):
        return take_block(take_sample, cores, replace(config, attempts=1))

    with pytest.MonkeyPatch.context() as patch:
        if "lab" not in request.path.relative_to(ROOT).parts:
            patch.setattr(measure, "take_block", take_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def _objects_of_c_are_kept(tmp_path_factory):
    """For all processes of a run: the C compiler takes 5 s for the runtime of bundles, 12 s as users compile it; that
    of boards takes 4 s."""
    base, scripts = tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("compilers")
    objects = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "objects"
    objects.mkdir(exist_ok=True)
    for name in (*native.COMPILERS, "arm-none-eabi-gcc"):
        if compiler := shutil.which(name):
            words = shlex.join([sys.executable, "-S", str(ROOT / "tests" / "compiler.py"), compiler, str(objects)])
            script = scripts / Path(compiler).resolve().name  # one for all names of a compiler
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            script.chmod(0o755)
            if script.name != name:
                (scripts / name).symlink_to(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(scripts), prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_of_the_user(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELEARN_TUNED", str(tmp_path_factory.mktemp("tuned")))
        patch.setenv("EDGELEARN_PROGRAMS", "")
        patch.setenv("EDGELEARN_FEATURES", "")
        patch.setenv("EDGELEARN_LOCKS", "")  # or tests would wait for one another
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        patch.delenv("COLUMNS", raising=False)  # processes that share the tests have 80
        yield


@pytest.fixture(autouse=True, scope="session")
def _kernels_compile_without_warnings():
    import pyopencl as cl

    compile_program, refused = kernels._without_remarks, []

    def compile_strictly(program, options=()):
        try:
            built = compile_program(program, options)
        except cl.Error as error:
            refused[:] = [error] if kernels.NO_BUILTINS in options else []
            raise
        assert not refused, f"with all built-in functions it compiles: builtins.h lacks one:\n{refused}"
        for device in built.get_info(cl.program_info.DEVICES):
            log = built.get_build_info(device, cl.program_build_info.LOG)
            # Intel's compiler warns of every loop that it leaves as it is.
            warnings = [line for line in log.splitlines() if "warning:" in line and "loop not vectorized" not in line]
            assert not warnings, f"a kernel was compiled with warnings:\n{log}"
        return built

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "QUIETLY", ())
        patch.setattr(kernels, "_without_remarks", compile_strictly)
        yield


@pytest.fixture(autouse=True, scope="session")
def _answers_are_as_documented():
    from edgelearn import cli
    from edgelearn.cli.answer import Answer, plain
    from edgelearn.cli.parser import FIELDS

    answer = cli.answer.answer

    def own_words(command):  # of "runs RUN" or "profile --project"
        return [word for word in command.split() if word[0].islower()]

    def check(words, record):
        commands = [command for command in FIELDS if own_words(command) == words[: len(own_words(command))]]
        longest = max(len(own_words(command)) for command in commands)
        documented = [FIELDS[command] for command in commands if len(own_words(command)) == longest]
        kind, rows = ("list", record) if isinstance(record, list) else ("object", [record])
        allowed = [set(", ".join(entries).split(", ")) for shape, entries in documented if shape == kind]
        assert allowed and all(set(row) in allowed for row in rows), f"{words} answers {record!r:.500}"

    def checked(options):
        execute = options.execute

        def execute_and_check(options):
            found = execute(options)
            if (record := found.record if isinstance(found, Answer) else found) is not None:
                check(shlex.split(cli.answer.command_line)[1:], plain(record))
            return found

        options.execute = execute_and_check
        return answer(options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.answer, "answer", checked)
        yield
