"""A network of torchvision, imported in both ways: forward and backward are PyTorch's."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchvision")
pytest.importorskip("onnx")

from import_figures import errors, imported, make, torch


@pytest.mark.parametrize("source", ["torch.export", "ONNX"])
@pytest.mark.parametrize("name", ["squeezenet1_1", "shufflenet_v2_x1_0"])
@pytest.mark.filterwarnings("ignore")
def test_outputs_and_gradients(name, source, tmp_path):
    module = make(name)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    forward, backward, count = errors(imported(module, x, source, tmp_path), module, x, torch.tensor([3, 7]))
    assert forward < 1e-5
    assert backward < 1e-4
    assert count == len(list(module.parameters()))
