"""Optimizers against Keras's: the same gradients move the same weights alike, clipped and averaged, too."""

import importlib.util
import json
import subprocess

import numpy as np
import pytest

from edgelearn import ops

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed: pip install 'edgelearn[tensorflow]'",
)
RULES = {
    "momentum": ("SGD", {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}),
    "Adam": ("Adam", {"learning_rate": 0.05}),
    "AdamW": ("AdamW", {"learning_rate": 0.05, "weight_decay": 0.1}),
    "RMSprop": ("RMSprop", {"learning_rate": 0.05, "momentum": 0.5, "centered": True, "epsilon": 1e-3}),
    "Lion": ("Lion", {"learning_rate": 0.05}),
    "LAMB": ("Lamb", {"learning_rate": 0.05}),
    "global norm": ("SGD", {"learning_rate": 0.05, "global_clipnorm": 0.5}),
    "norms": ("SGD", {"learning_rate": 0.05, "clipnorm": 0.5}),
    "values": ("SGD", {"learning_rate": 0.05, "clipvalue": 0.2}),
    "average": ("Adam", {"learning_rate": 0.05, "use_ema": True, "ema_momentum": 0.75}),
}
SCRIPT = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np
rules, weights, gradients = json.load(sys.stdin)
results = {}
for name, (rule, settings) in rules.items():
    variables = [keras.Variable(np.float32(w)) for w in weights]
    optimizer = getattr(keras.optimizers, rule)(**settings)
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(np.float32(g)) for g in step], variables)
    found = optimizer._model_variables_moving_average if settings.get("use_ema") else variables
    results[name] = [np.asarray(v.value).tolist() for v in found]
print(json.dumps(results))
"""
STEPS = 4


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((5, 7)), rng.standard_normal(7)]
    return weights, [[rng.standard_normal(w.shape) for w in weights] for _ in range(STEPS)]


@pytest.fixture(scope="module")
def keras(problem, python_with_tensorflow):
    weights, gradients = problem
    request = [RULES, [w.tolist() for w in weights], [[g.tolist() for g in step] for step in gradients]]
    done = subprocess.run(
        [*python_with_tensorflow, "-c", SCRIPT], input=json.dumps(request), capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def clipped(rule, step):
    """The float64 reference of clipping."""
    norms = [np.linalg.norm(g) for g in step]
    if rule.clipvalue:
        return [np.clip(g, -rule.clipvalue, rule.clipvalue) for g in step]
    limits = [rule.clipnorm] * len(step) if rule.clipnorm else [rule.global_clipnorm or np.inf] * len(step)
    norms = norms if rule.clipnorm else [np.linalg.norm(norms)] * len(step)
    return [g * min(1, limit / norm) for g, limit, norm in zip(step, limits, norms, strict=True)]


@pytest.mark.parametrize("name", RULES)
def test_references_are_keras_s(keras, problem, name):
    """The kernels are held to these references in tests/ops."""
    kind, settings = RULES[name]
    rule = {"Lamb": ops.LAMB}.get(kind) or getattr(ops, kind)
    rule = rule(**settings)
    weights, slots = problem[0], [[np.zeros_like(w) for _ in rule.slots] for w in problem[0]]
    averages = None
    for step, gradients in enumerate(problem[1], start=1):
        rate = rule.learning_rate
        shrunk = [w * (1 - rate * rule.weight_decay) for w in weights]
        moved = [
            rule.reference_update(w, g, s, rate, step)
            for w, g, s in zip(shrunk, clipped(rule, gradients), slots, strict=True)
        ]
        weights, slots = [w for w, _ in moved], [s for _, s in moved]
        share = 0 if averages is None else rule.ema_momentum
        averages = [share * (0 if averages is None else averages[i]) + (1 - share) * w for i, w in enumerate(weights)]
    expected = averages if rule.use_ema else weights
    for ours, theirs in zip(expected, keras[name], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-6)
