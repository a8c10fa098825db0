"""Keras on TensorFlow, on the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from edgelearn.interop.to_keras import keras_variables, to_keras
from edgelearn.interop.weights import fold_batchnorm
from edgelearn.ops import Loss, Optimizer

from .workloads import FULL, NAME, OpProblem, Problem, Workload, digest, make_problem

OpStep = Callable[[], Callable[[], list[float]]]


class KerasPeer:
    """Variants: a `function` written with tf.function, or Keras's own train_on_batch; each with XLA (`jit`) or not."""

    name = "keras"

    def __init__(self, cores: int, device: str) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(cores)
        tf.config.threading.set_inter_op_parallelism_threads(cores)

    def variants(self, workload: Workload) -> list[str]:
        if workload.compute != FULL:
            return []
        if not workload.trains or workload.op:
            return ["function", "function jit"]
        return ["function", "function jit", "train_on_batch", "train_on_batch jit"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        jit = variant.endswith("jit")
        if isinstance(problem, OpProblem):
            return _op_step(problem, workload.trains, jit)
        if not workload.trains:
            net, inputs = (
                to_keras(*fold_batchnorm(problem.network, problem.weights), logits=True),
                tf.constant(problem.inputs),
            )
            logits = tf.function(lambda: net(inputs, training=False), jit_compile=jit)
            return lambda: logits().numpy()
        net = to_keras(problem.network, problem.weights, workload.batchnorm, logits=True)
        make = _train_on_batch if variant.startswith("train_on_batch") else _function
        return make(net, problem, workload, jit)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _function(net: keras.Model, problem: Problem, workload: Workload, jit: bool) -> Callable[[], float]:
    optimizer = keras.optimizers.SGD(workload.learning_rate, workload.momentum)
    optimizer.build(net.trainable_variables)
    parts = [(tf.constant(examples), tf.constant(labels)) for examples, labels in problem.parts(workload.micro_batch)]

    def gradients_of(examples: tf.Tensor, labels: tf.Tensor) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss: Any = LOSS(labels, net(examples, training=True)) / len(parts)  # pyright: ignore[reportOptionalOperand]
        return loss, tape.gradient(loss, net.trainable_variables)  # pyright: ignore[reportCallIssue, reportArgumentType]

    if len(parts) == 1:

        @tf.function(jit_compile=jit)
        def update() -> tf.Tensor:
            loss, gradients = gradients_of(*parts[0])
            optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
            return loss

        return lambda: float(update())

    sums = [tf.Variable(tf.zeros_like(variable.value)) for variable in net.trainable_variables]

    @tf.function(jit_compile=jit)
    def add(examples: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = gradients_of(examples, labels)
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign_add(gradient)
        return loss

    @tf.function(jit_compile=jit)
    def apply() -> None:
        optimizer.apply_gradients(zip([tf.identity(s) for s in sums], net.trainable_variables, strict=True))
        for total in sums:
            total.assign(tf.zeros_like(total))

    def step() -> float:
        loss = sum(float(add(examples, labels)) for examples, labels in parts)
        apply()
        return loss

    return step


def _train_on_batch(net: keras.Model, problem: Problem, workload: Workload, jit: bool) -> Callable[[], float]:
    parts = problem.parts(workload.micro_batch)
    accumulated = len(parts) if len(parts) > 1 else None
    optimizer = keras.optimizers.SGD(workload.learning_rate, workload.momentum, gradient_accumulation_steps=accumulated)
    net.compile(optimizer, LOSS, jit_compile=jit)  # pyright: ignore[reportArgumentType]: "auto" is the default, bool the rest

    return lambda: sum(float(net.train_on_batch(examples, labels)) for examples, labels in parts) / len(parts)


def _op_step(problem: OpProblem, trains: bool, jit: bool) -> OpStep:
    """The step of a single op as a tf.function, compiled by XLA with `jit`."""
    if isinstance(problem.spec.op, Optimizer):
        parameter, gradient = keras.Variable(problem.x), tf.constant(problem.dy)
        optimizer = keras.optimizers.SGD(problem.learning_rate)
        optimizer.build([parameter])
        update = tf.function(lambda: optimizer.apply([gradient], [parameter]), jit_compile=jit)

        def apply() -> Callable[[], list[float]]:
            update()
            return lambda: digest(parameter.numpy())

        return apply
    inputs, dy = tf.constant(problem.x), tf.constant(problem.dy)
    weights: list[Any] = []
    gradients_of: list[Any] | None = [dy]
    if isinstance(problem.spec.op, Loss):
        labels, gradients_of = tf.constant(problem.labels), None

        def call() -> Any:
            return LOSS(labels, inputs)
    else:
        network = problem.spec.network()
        net = to_keras(network, problem.named_weights, "batch")
        variables = keras_variables(net, network)
        weights = [variables[f"{NAME}/{role}"].value for role in problem.trained]

        def call() -> Any:
            return net(inputs, training=True)

    sources = weights if problem.spec.reads_pictures else [inputs, *weights]

    forward = tf.function(lambda: (call(),), jit_compile=jit)

    @tf.function(jit_compile=jit)
    def train() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = call()
        return y, *tape.gradient([y], sources, gradients_of)

    def step() -> Callable[[], list[float]]:
        results = train() if trains else forward()
        return lambda: digest(*(tensor.numpy() for tensor in results))

    return step
