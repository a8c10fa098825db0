"""No kernel loses accuracy for speed: every choice that is shipped, for whatever device, against float64."""

import pytest

from edgelearn import tuned
from edgelearn.ops import Traits

from .harness import Workbench
from .linear import check_every_choice
from .test_batchnorm import check_backward, check_forward
from .test_tiles import WITH_EVERY_TILE

# On a device with the unit, other tests try every candidate: test_quantized_*.py, test_convolution_units.py.
OF_UNITS = ("quantized_", "units_")
FILES = sorted(tuned.shipped().glob("*.json"))


def shipped_choices(results: tuned.TuningResults) -> dict[str, list[dict]]:
    """By kernel, each once."""
    found: dict[str, list[dict]] = {}
    for name, choice in results.choices.items():
        choices = found.setdefault(name.split()[0], [])
        if choice not in choices:
            choices.append(choice)
    return found


class Shipped(Workbench):
    """A workbench that takes turns with what is shipped of the candidates."""

    shipped: dict[str, list[dict]]

    def choose(self, kernel, shape, candidates):
        known = [choice for choice in self.shipped.get(kernel, []) if choice in candidates]
        return super().choose(kernel, shape, known or candidates[:1])


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_right_with_every_shipped_choice(kernels, rng, path):
    results = tuned.load(path)
    kind, bench = results.kind, Shipped(kernels.context, kernels)
    bench.shipped = shipped_choices(results)
    bench.traits = Traits(kind.kind == "gpu", compute_units=8, vector_width=kind.vector_width)
    runs = [check_every_choice(op, bench, rng, shape, block=block) for op, shape, block in WITH_EVERY_TILE.values()]
    runs += [check_forward(bench, rng, 1537, 33), check_backward(bench, rng, 1537, 31, kept=False)]
    for kernel, choices in bench.shipped.items():
        if kernel.startswith(OF_UNITS):
            continue
        tried = [choice for run in runs for choice in run.get(kernel, [])]
        assert [choice for choice in choices if choice not in tried] == [], f"{kernel}: add a case that can choose this"
