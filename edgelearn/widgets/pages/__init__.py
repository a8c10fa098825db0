"""The functions of `el.lab`: each makes or runs an experiment in one call of a notebook, and returns an object that
shows itself."""

# By module; modules are imported when one of their functions is first used.
FUNCTIONS = {
    "start": ("devices", "stripes", "tiny_model", "timeline", "micro_batches", "same_gradients", "freezing",
              "feature_cache", "prediction"),
    "flowers": ("flowers", "train", "mistakes", "name_picture", "compare_runs"),
    "speed": ("speed", "formats", "roofline", "phones"),
    "models": ("model_file", "finetune", "drawings", "take_back"),
    "precision": ("thicket", "traffic", "counters", "precision", "trace", "published", "accuracies", "bits"),
    "memory": ("memory_claims", "reconstruction", "plan", "budget", "budgets", "memory", "time_against_memory"),
    "keywords": ("keywords",),
    "device": ("keywords_for_user", "beside_python", "linker_map", "step_energy"),
    "federated": ("federated", "partitions", "voices", "overheard", "deployment"),
}  # fmt: skip
MODULES = {name: f"{__name__}.{module}" for module, names in FUNCTIONS.items() for name in names}
