"""Live views and pictures for the notebooks."""

from edgelearn.experiments.memory_plans import plot_roles, plot_timeline
from edgelearn.experiments.precision import plot_ranges

from .forms import ExperimentView, Form
from .live import CurvesView, LiveChart
from .pictures import (
    Waiting,
    contact_sheet,
    device_table,
    plot_history,
    plot_prediction,
    plot_reconstruction,
    show,
    table,
)
from .training import TrainingView
from .views import BitsView, BudgetView, RocView

__all__ = [
    "BitsView", "BudgetView", "CurvesView", "ExperimentView", "Form", "LiveChart", "RocView", "TrainingView", "Waiting",
    "contact_sheet", "device_table", "plot_history", "plot_prediction", "plot_ranges", "plot_reconstruction",
    "plot_roles", "plot_timeline", "show", "table",
]  # fmt: skip
