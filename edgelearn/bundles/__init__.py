"""Bundles: the training of a network as C sources for phones, boards and microcontrollers."""

from .cortex_m import Board
from .fitting import BoardFitting, plan_for_board
from .native import NativeBundle, compile_client, write_client
from .write import Bundle, bundle, read_state

__all__ = [
    "Board", "BoardFitting", "Bundle", "NativeBundle", "bundle", "compile_client", "plan_for_board", "read_state",
    "write_client",
]  # fmt: skip
