"""Train and test one embedding: python -m edgelearn.experiments.keywords.embedding method=dummies seed=1 epochs=20"""

import sys
from dataclasses import fields

from edgelearn.runs import RunStore
from edgelearn.train import ProgressBar

from .config import KeywordsConfig
from .job import KeywordsJob

kinds = {field.name: type(field.default) for field in fields(KeywordsConfig)}
settings = {}
for argument in sys.argv[1:]:
    name, _, text = argument.partition("=")
    kind = kinds.get(name, str)
    settings[name] = text == "True" if kind is bool else (text if kind is type(None) else kind(text))
KeywordsJob.start(KeywordsConfig(**settings), RunStore(), [ProgressBar()])
