from types import SimpleNamespace

from edgelearn.runtime.devices import _architecture


def test_architecture_of_a_gpu():
    nvidia = SimpleNamespace(compute_capability_major_nv=9, compute_capability_minor_nv=0, name="NVIDIA H200")
    assert _architecture(nvidia, "gpu") == "compute capability 9.0"
    assert _architecture(SimpleNamespace(name="gfx90a "), "gpu") == "gfx90a"
