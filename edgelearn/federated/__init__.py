"""Federated learning: clients that train where their data is, and a server that aggregates what they learned."""

from .client import Clients, Examples
from .compressor import Compressor, NoCompression, Partly
from .grid import Grid, LocalGrid
from .memory import ClientMemory
from .messages import Instruction, Reply, Size, size_of
from .partition import IID, ByGroup, Dirichlet, LabelsPerClient, Partition, counts
from .rounds import RoundRecord, Rounds, Settings
from .screening import Update, screen
from .strategy import (
    STRATEGIES,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    NormClipping,
    Strategy,
    make_strategy,
    mean,
)

__all__ = [
    "IID", "STRATEGIES", "ByGroup", "ClientMemory", "Clients", "Compressor", "Dirichlet", "Examples", "FedAdam",
    "FedAvg", "FedAvgM", "FedMedian", "FedTrimmedAvg", "FedYogi", "Grid", "Instruction", "Krum", "LabelsPerClient",
    "LocalGrid", "MultiKrum", "NoCompression", "NormClipping", "Partition", "Partly", "Reply", "RoundRecord", "Rounds",
    "Settings", "Size", "Strategy", "Update", "counts", "make_strategy", "mean", "screen", "size_of",
]  # fmt: skip
