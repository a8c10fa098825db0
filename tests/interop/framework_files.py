"""Write models with Keras and TensorFlow to a folder, and what they compute: python framework_files.py FOLDER"""

import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L
from keras.src.applications.convnext import LayerScale
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

FOLDER = Path(sys.argv[1])
RNG = np.random.default_rng(0)
keras.utils.set_random_seed(0)


def classifier():
    return keras.Sequential([
        keras.Input((16, 16, 3)),
        L.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="conv"),
        L.BatchNormalization(name="norm"),
        L.ReLU(6.0, name="cut"),
        L.DepthwiseConv2D(3, padding="same", activation="relu", name="depthwise"),
        L.MaxPooling2D(2, name="pool"),
        L.Dropout(0.0),
        L.Flatten(name="flat"),
        L.Dense(5, activation="softmax", name="scores"),
    ])  # fmt: skip


def nested():
    """A model in a model, two branches, a BatchNorm without scale, and layers that the file lists out of order."""
    inner = keras.Sequential(
        [keras.Input((8, 8, 6)), L.SeparableConv2D(6, 3, padding="same", name="sep"),
         L.BatchNormalization(name="ib", scale=False)],
        name="inner",
    )  # fmt: skip
    x = keras.Input((8, 8, 3), name="picture")
    a = L.Conv2D(6, 3, padding="same", activation="relu", name="a")(x)
    b = inner(a)
    c = L.Conv2D(6, 1, dilation_rate=1, name="c")(L.ZeroPadding2D(((1, 0), (0, 1)), name="zero")(b))
    c = L.Cropping2D(((1, 0), (0, 1)), name="crop")(c)
    y = L.Concatenate(name="cat")([L.Add(name="sum")([a, c]), b])
    y = L.GlobalAveragePooling2D(name="mean")(y)
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def functions():
    """Squeeze and excite, hard-swish and others as functions between layers."""
    x = keras.Input((8, 8, 4))
    y = L.Conv2D(8, 3, padding="same", name="conv")(x)
    y = y * keras.ops.relu6(y + 3.0) * (1 / 6)
    gate = L.GlobalAveragePooling2D(keepdims=True, name="squeeze")(y)
    gate = L.Conv2D(8, 1, activation="hard_sigmoid", name="excite")(gate)
    y = L.Multiply(name="scale")([y, gate])
    y = keras.ops.silu(y) - 0.5
    y = LayerScale(0.3, 8, name="factors")(y)
    y = L.AveragePooling2D(2, name="pool")(y)
    y = L.Flatten(name="flat")(y)
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def others():
    """Rarer layers: extremes, unit length, layer normalization, padded channels, logarithms of probabilities."""
    x = keras.Input((8, 8, 8))
    a, b = keras.ops.split(x, 2, axis=-1)
    y = L.Conv2D(8, 3, activation="gelu", name="conv")(keras.ops.maximum(a, b))
    y = L.LayerNormalization(name="norm")(y)
    y = L.Minimum(name="least")([y, L.UnitNormalization(name="unit")(y)])
    y = keras.ops.pad(y, [[0, 0], [1, 0], [0, 0], [0, 2]])
    y = L.Dense(6, activation="elu", name="dense")(keras.ops.mean(y, axis=1))
    return keras.Model(x, L.Softmax(name="out")(L.Dense(5, name="scores")(L.Flatten(name="flat")(y))))


def sequence():
    """Sound: convolutions over time."""
    x = keras.Input((20, 6))
    y = L.Conv1D(8, 3, padding="causal", activation="tanh", name="causal")(x)
    y = L.DepthwiseConv1D(3, padding="same", name="depthwise")(y)
    y = L.LeakyReLU(0.1, name="leaky")(L.GroupNormalization(4, name="groups")(y))
    y = L.MaxPooling1D(2, name="pool")(y)
    y = L.GlobalAveragePooling1D(name="mean")(y)
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def shuffle():
    """A channel shuffle, a transpose and a permute around a classifier."""
    x = keras.Input((6, 4, 6))
    y = L.Conv2D(6, 1, name="conv")(x)
    y = L.Reshape((6, 4, 2, 3), name="split")(y)
    y = L.Permute((1, 2, 4, 3), name="turn")(y)
    y = L.Reshape((6, 4, 6), name="join")(y)
    y = L.Conv2D(4, 3, name="after", activation="elu")(y)
    y = L.Flatten(name="flat")(L.Permute((3, 1, 2), name="first")(y))
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def attending():
    """Attention of pixels, values that a comparison chooses, and logarithms of probabilities."""
    x = keras.Input((4, 5, 3))
    rows = L.Reshape((20, 8), name="rows")(L.Conv2D(8, 1, name="conv")(x))
    scores = keras.ops.softmax(keras.ops.matmul(rows, keras.ops.transpose(rows, (0, 2, 1))) * 0.3)
    y = keras.ops.matmul(scores, rows)
    y = keras.ops.where(keras.ops.greater(y, 0.1), y, rows * -0.5)
    y = L.GlobalAveragePooling1D(name="mean")(L.Activation("log_softmax", name="logs")(y))
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def words():
    """Rows of a table by numbers."""
    x = keras.Input((7,), dtype="int32")
    y = L.GlobalAveragePooling1D(name="mean")(L.Embedding(9, 6, name="table")(x))
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def memory():
    """Recurrent layers in one and in both directions."""
    x = keras.Input((7, 3))
    y = L.LSTM(4, return_sequences=True, name="one")(x)
    y = L.Bidirectional(L.GRU(6, return_sequences=True), merge_mode="ave", name="two")(y)
    y = L.GRU(5, go_backwards=True, use_bias=False, name="three")(y)
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def heads():
    """Attention of several heads: of a sequence to itself, each step to earlier ones, and of a part of it to all."""
    x = keras.Input((7, 6))
    y = L.MultiHeadAttention(3, 4, name="own")(x, x, use_causal_mask=True)
    y = L.LayerNormalization(name="norm")(L.Add(name="sum")([x, y]))
    part = L.Cropping1D((2, 0), name="part")(y)
    y = L.MultiHeadAttention(2, 3, use_bias=False, dropout=0.1, name="cross")(part, y)
    y = L.GlobalAveragePooling1D(name="mean")(y)
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def groups():
    """Attention of fewer heads of keys than of queries, with a mask of keys that the input says; of a single head, with
    a trained scale and without one; and the function that they call."""
    x = keras.Input((7, 6))
    there = keras.ops.greater(x[..., 0], -0.5)
    y = L.GroupQueryAttention(3, 4, 2, name="grouped")(x, x, use_causal_mask=True)
    mask = keras.ops.expand_dims(there, 1)
    y = L.GroupQueryAttention(2, 3, 1, use_bias=False, name="one")(y, x, attention_mask=mask)
    y = L.Attention(use_scale=True, dropout=0.1, name="own")([y, x], use_causal_mask=True)
    y = L.Attention(name="plain")([y[:, 1:-1], x, y], mask=[None, there])
    q, k = L.Reshape((5, 3, 2))(y), L.Reshape((7, 1, 6))(x)[:, ::2, :, 1:3]
    y = keras.ops.dot_product_attention(q, keras.ops.repeat(k, 3, axis=2), keras.ops.repeat(k * 2.0, 3, 2), scale=0.3)
    y = L.RMSNormalization(name="root")(L.Flatten(name="flat")(y))
    return keras.Model(x, L.Dense(5, activation="softmax", name="scores")(y))


def tied():
    """A table of words that also gives the logits, and weights by themselves: a row for each step."""
    x = keras.Input((4,))
    table = L.ReversibleEmbedding(9, 6, name="table")
    places = keras.ops.zeros_like(x, dtype="int32") + np.arange(4)
    y = table(x) + L.Embedding(4, 6, name="places")(places)
    y = keras.ops.multiply(np.float32([1, 2, 0, -1, 1, 1]), y)
    y = keras.ops.max(table(y, reverse=True), axis=1)
    return keras.Model(x, L.Softmax(name="out")(y))


def dilated(x):
    """Dilated convolutions as TensorFlow 1 writes them, of an image and of a sequence; sizes that the blocks don't
    divide are padded, and cropped again."""
    rng, sizes = np.random.default_rng(1), ((3, 3, 4, 6), (3, 2, 6, 1), (1, 3, 6, 5))
    kernels = [tf.constant(rng.normal(size=size), tf.float32) for size in sizes]
    y = tf.space_to_batch(x, [2, 3], [[2, 3], [3, 5]])
    y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(y, kernels[0], 1, "VALID"), tf.range(6.0)))
    y = tf.raw_ops.BatchToSpaceND(input=y, block_shape=[2, 3], crops=[[0, 1], [0, 2]])
    y = tf.space_to_batch(y, [2, 2], [[0, 1], [1, 0]])
    y = tf.nn.depthwise_conv2d(y, kernels[1], [1, 1, 1, 1], "VALID")
    y = tf.reduce_mean(tf.raw_ops.BatchToSpaceND(input=y, block_shape=[2, 2], crops=[[0, 1], [1, 0]]), 1)
    y = tf.expand_dims(tf.space_to_batch(y, [2], [[2, 3]]), 1)
    y = tf.squeeze(tf.nn.conv2d(y, kernels[2], 1, "VALID"), [1])
    return tf.raw_ops.BatchToSpaceND(input=y, block_shape=[2], crops=[[0, 1]])


def faked(x):
    """The ranges of a training for integers: of inputs, of a kernel, of values, of each channel, and one that cuts
    nothing off."""
    fake, rng = tf.quantization, np.random.default_rng(1)
    y = fake.fake_quant_with_min_max_args(x, -1.1, 1.2)
    kernel = tf.constant(rng.normal(size=(2, 2, 3, 4)), tf.float32)
    y = tf.nn.conv2d(y, fake.fake_quant_with_min_max_vars(kernel, -1.0, 1.5, 4, narrow_range=True), 1, "VALID")
    y = fake.fake_quant_with_min_max_vars(y, -1.3, 2.1, 16)
    ends = tf.constant([-0.5, -1.0, -0.2, 0.0]), tf.constant([0.5, 0.3, 2.0, 1.0])
    y = fake.fake_quant_with_min_max_vars_per_channel(y, *ends, 16)
    return fake.fake_quant_with_min_max_args(tf.nn.sigmoid(y), 0.0, 1.0, 16)


def picked(x):
    """Rows by rounded numbers of each example."""
    numbers = tf.round(tf.minimum(tf.abs(x[:, 0, :, 0]), 1) * 4)
    return tf.gather(x, tf.cast(numbers, tf.int32), axis=1, batch_dims=1)


def unsupported():
    @keras.saving.register_keras_serializable("tests")
    class Mine(L.Layer):
        def call(self, x):
            return x

    x = keras.Input((8, 4))
    y = L.Lambda(lambda t: t * 2, name="code", output_shape=(8, 4))(x)
    y = L.SimpleRNN(3, name="memory")(Mine(name="mine")(y))
    wide = L.MultiHeadAttention(2, 3, value_dim=5, name="wide")(x, x)
    window = L.GroupQueryAttention(2, 2, 1, sliding_window=2, name="window")(x, x)
    pairs = keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))) > 0
    each = L.MultiHeadAttention(2, 3, name="each")(x, x, attention_mask=pairs)
    added = L.Attention(score_mode="concat", name="added")([x, x])
    keras.Model(x, [y, wide, window, each, added]).save(FOLDER / "unsupported.keras")


def draw(model):
    for variable in model.variables:
        role = variable.path.rsplit("/", 1)[-1]
        if role == "moving_variance":
            variable.assign(RNG.uniform(0.5, 1.5, variable.shape))
        elif role in ("gamma", "beta", "bias", "moving_mean"):
            variable.assign(RNG.normal(role == "gamma", 0.2, variable.shape))


def names(model):
    """Our names of Keras's trained weights: a layer's own, without the models around it, or the cell in it; of
    attention those of its dense layers."""
    found = []
    for *around, layer, role in (v.path.split("/") for v in model.trainable_variables):
        if layer.endswith("_cell"):
            *around, layer = around
            layer = f"{around[-1]}_{layer.partition('_')[0]}" if around else layer
        if layer in ("query", "key", "value", "attention_output"):
            layer = around[-1] if layer == "attention_output" else f"{around[-1]}_{layer}"
        found.append(f"{layer}/{role}")
    return found


def main():
    unsupported()
    for make in (
        classifier,
        nested,
        functions,
        others,
        sequence,
        shuffle,
        attending,
        words,
        memory,
        heads,
        groups,
        tied,
    ):
        model, name = make(), make.__name__
        draw(model)
        x = RNG.normal(size=(4, *model.input_shape[1:])).astype(np.float32)
        x = RNG.integers(0, 9, x.shape) if name in ("words", "tied") else x
        labels = np.arange(4)
        with tf.GradientTape() as tape:
            y = model(x, training=False)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        found = {f"gradient {n.replace('/', '|')}": tf.convert_to_tensor(g).numpy()
                 for n, g in zip(names(model), gradients, strict=True)}  # fmt: skip
        np.savez(FOLDER / f"{name}.npz", x=x, y=y.numpy(), labels=labels, **found)
        model.save(FOLDER / f"{name}.keras")
        if name in ("classifier", "nested"):
            model.save(FOLDER / f"{name}.h5")
            model.save_weights(FOLDER / f"{name}.weights.h5")
        if name == "nested":
            model.get_layer("a").trainable = model.get_layer("inner").trainable = False
            model.save(FOLDER / "frozen.keras")
        if name in ("classifier", "functions", "others", "shuffle", "sequence"):
            function = tf.function(lambda t, model=model: model(t, training=False))
            concrete = function.get_concrete_function(tf.TensorSpec((1, *model.input_shape[1:]), tf.float32))
            lite(name, concrete)
        if name in ("attending", "words"):
            kind = tf.int32 if name == "words" else tf.float32
            spec = tf.TensorSpec((None, *model.input_shape[1:]), kind)
            concrete = tf.function(lambda t, model=model: model(t, training=False)).get_concrete_function(spec)
            frozen = convert_variables_to_constants_v2(concrete)
            (FOLDER / f"{name}.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
        if name == "classifier":
            frozen = convert_variables_to_constants_v2(concrete)
            (FOLDER / "classifier.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
            model.export(FOLDER / "classifier", verbose=False)
            quantized(concrete, model.input_shape[1:])

    x = RNG.normal(size=(1, 9, 7, 4)).astype(np.float32)
    np.savez(FOLDER / "dilated.npz", x=x, y=dilated(x).numpy())
    concrete = tf.function(dilated).get_concrete_function(tf.TensorSpec(x.shape, tf.float32))
    (FOLDER / "dilated.pb").write_bytes(concrete.graph.as_graph_def().SerializeToString())
    lite("dilated", concrete)
    x = RNG.normal(size=(2, 5, 4, 3)).astype(np.float32)
    for function in (faked, picked):
        name = function.__name__
        np.savez(FOLDER / f"{name}.npz", x=x, y=function(x).numpy())
        concrete = tf.function(function).get_concrete_function(tf.TensorSpec((None, *x.shape[1:]), tf.float32))
        (FOLDER / f"{name}.pb").write_bytes(concrete.graph.as_graph_def().SerializeToString())
    lite("picked", concrete)


def lite(name, concrete, **settings):
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    for key, value in settings.items():
        setattr(converter, key, value)
    (FOLDER / f"{name}.tflite").write_bytes(converter.convert())


def quantized(concrete, shape):
    def examples():
        for _ in range(20):
            yield [RNG.normal(size=(1, *shape)).astype(np.float32)]

    small = [tf.lite.Optimize.DEFAULT]
    half = tf.lite.TargetSpec(supported_types=[tf.float16])
    integers = tf.lite.TargetSpec(supported_ops=[tf.lite.OpsSet.TFLITE_BUILTINS_INT8])
    lite("half", concrete, optimizations=small, target_spec=half)
    lite("dynamic", concrete, optimizations=small)
    for name, kind in (("integers", tf.int8), ("unsigned", tf.uint8)):
        lite(name, concrete, optimizations=small, representative_dataset=examples, target_spec=integers,
             inference_input_type=kind, inference_output_type=kind)  # fmt: skip


main()
