"""Training of embeddings on some words and speakers, tested on other ones."""

from .config import KeywordsConfig
from .data import TASKS, TaskData, by_word, load_task
from .experiment import KeywordsExperiment
from .weights import make_embedder

__all__ = ["TASKS", "KeywordsConfig", "KeywordsExperiment", "TaskData", "by_word", "load_task", "make_embedder"]
