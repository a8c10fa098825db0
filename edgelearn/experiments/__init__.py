"""The experiments: what each is, how to run it, and the figures to expect."""

# Kinds of runs, and where the Experiment of each is: modules are imported when one is asked for.
EXPERIMENTS = {
    "flowers": "edgelearn.experiments.flowers:FlowersExperiment",
    "finetune": "edgelearn.experiments.finetune:FinetuneExperiment",
    "precision": "edgelearn.experiments.precision:PrecisionExperiment",
    "memory": "edgelearn.experiments.memory:MemoryExperiment",
    "activity": "edgelearn.experiments.activity:ActivityExperiment",
    "characters": "edgelearn.experiments.characters:CharactersExperiment",
    "intents": "edgelearn.experiments.intents:IntentsExperiment",
    "language": "edgelearn.experiments.language:LanguageExperiment",
    "keywords": "edgelearn.experiments.keywords.embedding:KeywordsExperiment",
    "federated": "edgelearn.experiments.federated:FederatedExperiment",
}
