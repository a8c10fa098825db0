import pytest

from edgelearn.errors import ShapeError
from edgelearn.graph import Network, add_split
from edgelearn.ops import Conv2D


def network() -> Network:
    net = Network("split", (6, 5, 3))
    net.add("conv", Conv2D(12, 1))
    return net


def test_equal_parts():
    net = network()
    names = add_split(net, "part", 3)
    assert names == ["part_1", "part_2", "part_3"]
    assert [net.shape_of(name) for name in names] == [(6, 5, 4)] * 3
    assert [net.nodes[name].op.begin for name in names] == [(0, 0, 0), (0, 0, 4), (0, 0, 8)]


def test_sizes_of_another_axis():
    net = network()
    names = add_split(net, "rows", (1, 3, 2), "conv", axis=1)
    assert [net.shape_of(name) for name in names] == [(1, 5, 12), (3, 5, 12), (2, 5, 12)]
    assert [net.nodes[name].inputs for name in names] == [("conv",)] * 3


@pytest.mark.parametrize("parts", [5, 0, (4, 4), (6, 7), (12, 0)])
def test_parts_that_do_not_add_up(parts):
    with pytest.raises(ShapeError):
        add_split(network(), "part", parts)
