"""PyTorch modules to networks, by torch.export. It needs PyTorch."""

from .handlers import HANDLERS as HANDLERS
from .handlers import NEAREST as NEAREST
from .read import graph_of_module as graph_of_module
