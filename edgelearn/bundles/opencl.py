"""Target opencl: the plan's own kernels as text, and the launches as tables, for any driver of OpenCL 1.2."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgelearn.errors import PlanError
from edgelearn.runtime.kernels import FOR_SM_90A, NO_BUILTINS, builtins, read_source

from .tables import Fill, Matrix, Step, Tables
from .text import argument, array, braces, quoted

COMMENT = re.compile(r"^[ \t]*//.*\n", re.MULTILINE)
MOST_PARAGRAPHS = 256  # of a program: EL_MOST_PARAGRAPHS in launches.h


class Texts:
    """The texts of kernels, in paragraphs. Kernels have most of them in common, and each stands once."""

    def __init__(self) -> None:
        self.paragraphs: dict[str, int] = {}
        self.lists: list[int] = []
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, text: str) -> tuple[int, int]:
        """(first, count) in `lists` of a text's paragraphs."""
        if text not in self._spans:
            parts = [f"{part.strip(chr(10))}\n" for part in re.split(r"\n{2,}", COMMENT.sub("", text)) if part.strip()]
            assert len(parts) <= MOST_PARAGRAPHS
            self._spans[text] = len(self.lists), len(parts)
            self.lists += [self.paragraphs.setdefault(part, len(self.paragraphs)) for part in parts]
        return self._spans[text]

    @property
    def nbytes(self) -> int:
        return sum(len(text) + 1 for text in self.paragraphs)


class OpenCLTarget:
    """The files of a bundle for OpenCL, besides the tables of every target.

    Arguments:
    - `tables`: the plan's.
    - `fills`: what model.weights holds.

    Raises PlanError for kernels that need instructions which no driver compiles from text.
    """

    folders = ("opencl",)
    device = traits = None  # the plan is for the model's device

    def __init__(self, tables: Tables, fills: Sequence[Fill]) -> None:
        self.tables, self.fills, self.texts = tables, fills, Texts()
        self.sources: dict[tuple, int] = {}
        self.rows: list[str] = []
        for step in tables.steps:
            self._add(step)

    def _add(self, step: Step) -> None:
        launch = step.launch
        options = [f"-D{name}={value}" for name, value in launch.macros] + [f"-DGROUP={launch.group}"]
        if FOR_SM_90A in options:
            raise PlanError(f"'{launch.layer}' uses WGMMA, which has no text in OpenCL: bundle it with compute='fp32'.")
        key = launch.source, launch.kernel, launch.macros, launch.group
        if key not in self.sources:
            self.sources[key] = len(self.sources)
            first, count = self.texts.add(read_source(launch.source, launch.kernel))
            self.rows.append(braces(quoted(launch.kernel), quoted(" ".join(options)), first, count))

    @property
    def kernels(self) -> int:
        """Number of different kernels."""
        return len(self.sources)

    @property
    def code_bytes(self) -> int:
        """Bytes of the kernels' texts."""
        return self.texts.nbytes

    def files(self) -> dict[str, str]:
        """Generated sources by name."""
        return {"kernels.c": self._kernels(), "launches.c": self._launches()}

    def _kernels(self) -> str:
        return "\n".join([
            '/* The texts of the kernels. */\n#include "launches.h"\n',
            f"const char *const el_no_builtins = {quoted(' ' + NO_BUILTINS)};",
            array("char *const el_paragraphs", map(quoted, self.texts.paragraphs)),
            array("uint16_t el_paragraph_lists", self.texts.lists), array("el_source el_sources", self.rows),
            f"const char *const el_builtins =\n{quoted(builtins())};\n",
        ])  # fmt: skip

    def _launches(self) -> str:
        arguments, rows = [], []
        for step in self.tables.steps:
            launch, first = step.launch, len(arguments)
            key = launch.source, launch.kernel, launch.macros, launch.group
            arguments += [argument(value) for value in step.arguments]
            grid = [-(-launch.grid[0] // launch.group) * launch.group, *launch.grid[1:], 1, 1][:3]
            rows.append(
                braces(self.sources[key], len(launch.grid), braces(*grid), launch.group, first, len(arguments) - first)
            )
        largest = max(launch.launch.group for launch in self.tables.steps)
        return "\n".join([
            '/* The launches of the plan. */\n#include "launches.h"\n', array("el_argument el_arguments", arguments),
            array("el_launch el_launches", rows), f"const uint32_t el_source_count = {len(self.sources)};",
            f"const uint32_t el_launch_count = {len(rows)};", f"const uint32_t el_largest_group = {largest};",
            f"const uint32_t el_page_bytes = {self._page_bytes()};",
            f"const int el_for_gpu = {int(self.tables.plan.traits.gpu)};", "",
        ])  # fmt: skip

    def _page_bytes(self) -> int:
        """Room for the largest tensor that passes between host and device, and for two micro-batches: the next one is
        written while one is on its way."""
        tables, size = self.tables, self.tables.plan.request.micro_batch
        targets = max(nbytes(tables.targets), 4 * tables.targets.rows)
        micro_batch = sum(-(-size * each // 64) * 64 for each in (nbytes(tables.input), targets))
        kept = [nbytes(m) for m, _ in tables.kept().values()]
        return max([2 * micro_batch + 128, size * nbytes(tables.output), *kept])


def nbytes(m: Matrix) -> int:
    return 4 * m.rows * -(-m.channels // m.block) * m.block
