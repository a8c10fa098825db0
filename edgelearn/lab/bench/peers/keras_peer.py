"""Keras on TensorFlow, on the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edgelearn.lab.bench.ops import OpProblem
from edgelearn.lab.bench.problem import EPSILON, MOVING_AVERAGE, Problem, make_problem
from edgelearn.lab.bench.workloads import Workload

from . import keras_ops


class KerasPeer:
    """Variants: a `function` written with tf.function, or Keras's own train_on_batch; each with XLA (`jit`) or not."""

    name = "keras"

    def __init__(self, cores: int, device: str) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(cores)
        tf.config.threading.set_inter_op_parallelism_threads(cores)

    def variants(self, workload: Workload) -> list[str]:
        if not workload.trains or workload.op:
            return ["function", "function jit"]
        return ["function", "function jit", "train_on_batch", "train_on_batch jit"]

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        problem = make_problem(workload)
        jit = variant.endswith("jit")
        if isinstance(problem, OpProblem):
            return keras_ops.prepare(problem, workload.trains, jit)
        if not workload.trains:
            return _forward(_network(problem, workload, fold=True), problem.inputs, jit)
        net = _network(problem, workload, fold=False)
        make = _train_on_batch if variant.startswith("train_on_batch") else _function
        return make(net, problem, workload, jit)


class KeptBatchNormalization(keras.layers.BatchNormalization):
    """BatchNormalization that keeps its statistics in training too, while scale and bias may be trained."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        return super().call(inputs, training=False, mask=mask)


def _network(problem: Problem, workload: Workload, fold: bool) -> keras.Model:
    tensor = inputs = keras.Input(problem.inputs.shape[1:])
    for layer in problem.layers:
        options = {"strides": layer.stride, "padding": "same", "use_bias": fold}
        size = layer.kernel.shape[0]
        if layer.depthwise:
            convolution = keras.layers.DepthwiseConv2D(size, **options)
        else:
            convolution = keras.layers.Conv2D(layer.kernel.shape[3], size, **options)
        tensor = convolution(tensor)
        kernel, bias = layer.folded() if fold else (layer.kernel, None)
        convolution.set_weights([kernel[..., None] if layer.depthwise else kernel] + ([bias] if fold else []))
        if not fold:
            kind = keras.layers.BatchNormalization if workload.batch_statistics else KeptBatchNormalization
            batchnorm = kind(momentum=MOVING_AVERAGE, epsilon=EPSILON)
            tensor = batchnorm(tensor)
            batchnorm.set_weights([layer.gamma, layer.beta, layer.mean, layer.variance])
            batchnorm.trainable = workload.trains_batchnorm
        tensor = keras.layers.ReLU(6.0)(tensor)
    dense = keras.layers.Dense(problem.dense_kernel.shape[1])
    outputs = dense(keras.layers.GlobalAveragePooling2D()(tensor))
    dense.set_weights([problem.dense_kernel, problem.dense_bias])
    return keras.Model(inputs, outputs)


def _forward(net: keras.Model, pictures: np.ndarray, jit: bool) -> Callable[[], np.ndarray]:
    inputs = tf.constant(pictures)

    @tf.function(jit_compile=jit)
    def logits() -> tf.Tensor:
        return net(inputs, training=False)

    return lambda: logits().numpy()


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _function(net: keras.Model, problem: Problem, workload: Workload, jit: bool) -> Callable[[], float]:
    loss_of = _loss()
    optimizer = keras.optimizers.SGD(workload.learning_rate, workload.momentum)
    optimizer.build(net.trainable_variables)
    parts = [(tf.constant(pictures), tf.constant(labels)) for pictures, labels in _parts(problem, workload)]

    def gradients_of(pictures: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, net(pictures, training=True)) / len(parts)
        return loss, tape.gradient(loss, net.trainable_variables)

    if len(parts) == 1:

        @tf.function(jit_compile=jit)
        def update() -> tf.Tensor:
            loss, gradients = gradients_of(*parts[0])
            optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
            return loss

        return lambda: float(update())

    sums = [tf.Variable(tf.zeros_like(variable.value)) for variable in net.trainable_variables]

    @tf.function(jit_compile=jit)
    def add(pictures: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = gradients_of(pictures, labels)
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign_add(gradient)
        return loss

    @tf.function(jit_compile=jit)
    def apply() -> None:
        optimizer.apply_gradients(zip([tf.identity(s) for s in sums], net.trainable_variables, strict=True))
        for total in sums:
            total.assign(tf.zeros_like(total))

    def step() -> float:
        loss = sum(float(add(pictures, labels)) for pictures, labels in parts)
        apply()
        return loss

    return step


def _train_on_batch(net: keras.Model, problem: Problem, workload: Workload, jit: bool) -> Callable[[], float]:
    parts = _parts(problem, workload)
    accumulated = len(parts) if len(parts) > 1 else None
    optimizer = keras.optimizers.SGD(workload.learning_rate, workload.momentum, gradient_accumulation_steps=accumulated)
    net.compile(optimizer, _loss(), jit_compile=jit)

    return lambda: sum(float(net.train_on_batch(pictures, labels)) for pictures, labels in parts) / len(parts)


def _parts(problem: Problem, workload: Workload) -> list[tuple[np.ndarray, np.ndarray]]:
    size = workload.micro_batch
    starts = range(0, workload.batch, size)
    return [(problem.inputs[i : i + size], problem.labels[i : i + size]) for i in starts]
