"""Federated learning: clients that train where their data is, and a server that aggregates what they learned."""

from .asynchronous import SimulatedGrid, draw_durations, staleness_weight
from .client import ClientMemory, Clients, Examples
from .compression import Compressor, NoCompression, Partly
from .gateway import Gateway
from .messages import Grid, Instruction, LocalGrid, Reply, Size, size_of
from .partition import IID, ByGroup, Dirichlet, LabelsPerClient, Partition, counts
from .server import RoundRecord, Server, ServerSettings, Update, screen
from .strategy import (
    MIXINGS,
    STRATEGIES,
    Buckets,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedNova,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    Mixing,
    MultiKrum,
    Nearest,
    NormClipping,
    Strategy,
    make_mixing,
    make_strategy,
    mean,
)

__all__ = [
    "IID", "MIXINGS", "STRATEGIES", "Buckets", "ByGroup", "ClientMemory", "Clients", "Compressor", "Dirichlet",
    "Examples", "FedAdam", "FedAvg", "FedAvgM", "FedMedian", "FedNova", "FedTrimmedAvg", "FedYogi", "Gateway", "Grid",
    "Instruction", "Krum", "LabelsPerClient", "LocalGrid", "Mixing", "MultiKrum", "Nearest", "NoCompression",
    "NormClipping", "Partition", "Partly", "Reply", "RoundRecord", "Server", "ServerSettings", "SimulatedGrid", "Size",
    "Strategy", "Update", "counts", "draw_durations", "make_mixing", "make_strategy", "mean", "screen", "size_of",
    "staleness_weight",
]  # fmt: skip
