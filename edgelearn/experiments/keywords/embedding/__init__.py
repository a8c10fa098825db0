"""Embeddings of words: trained on some words and speakers, tested on other ones."""

from .config import KeywordsConfig
from .data import TASKS, TaskData, by_word, load_task
from .job import KeywordsJob
from .weights import make_embedder

__all__ = ["TASKS", "KeywordsConfig", "KeywordsJob", "TaskData", "by_word", "load_task", "make_embedder"]
