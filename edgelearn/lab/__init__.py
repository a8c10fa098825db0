"""The laboratory: runs, benchmarks, profiles, tuning. In notebooks, `el.lab` has a function for each experiment, too,
such as `el.lab.precision()` (edgelearn.widgets.pages)."""

from importlib import import_module
from typing import Any

# By module of edgelearn.widgets.pages. These lie higher and need packages for notebooks, so that each is imported when
# one of its functions is first used.
FUNCTIONS = {
    "start": ("devices", "stripes", "tiny_model", "timeline", "micro_batches", "same_gradients", "freezing",
              "feature_cache", "prediction"),
    "flowers": ("flowers", "train", "mistakes", "name_picture", "compare_runs"),
    "speed": ("speed", "formats", "roofline", "phones"),
    "models": ("model_file", "finetune", "drawings", "take_back"),
    "depth": ("depth",),
    "precision": ("thicket", "traffic", "counters", "precision", "trace", "published", "accuracies", "bits"),
    "memory": ("memory_claims", "reconstruction", "plan", "budget", "budgets", "memory", "time_against_memory"),
    "keywords": ("keywords", "speakers"),
    "personalisation": ("adapt", "asking", "replay"),
    "sequences": ("activity", "characters", "through_time"),
    "device": (
        "keywords_for_user", "beside_python", "serial_depths", "linker_map", "what_fits", "step_energy",
    ),
    "federated": ("federated", "partitions", "voices", "overheard", "deployment"),
}  # fmt: skip
_PAGES = {name: f"edgelearn.widgets.pages.{module}" for module, names in FUNCTIONS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PAGES:
        return getattr(import_module(_PAGES[name]), name)
    raise AttributeError(f"module 'edgelearn.lab' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *_PAGES]
