"""Inspect a model, operator by operator, before anything runs."""

from .inspect import inspect
from .report import Inspection, LayerReport

__all__ = ["Inspection", "LayerReport", "inspect"]
