"""Twins in Keras of networks that keras.applications doesn't have, for keras_networks.py."""

from functools import partial

import keras
import tensorflow as tf
from keras import layers


class GroupedConv2D(layers.Conv2D):
    """A Conv2D in groups, which TensorFlow can't differentiate on a processor, as one convolution for each."""

    def call(self, x):
        parts = zip(tf.split(x, self.groups, -1), tf.split(self.kernel.value, self.groups, -1), strict=True)
        found = [tf.nn.conv2d(part, kernel, self.strides, self.padding.upper()) for part, kernel in parts]
        return tf.concat(found, -1) + self.bias


def rectified(x, layer, **settings):
    return layers.ReLU(**settings)(layer(x))


def around(x, side):
    return layers.ZeroPadding2D(side)(x) if side else x


def classifier(inputs, x, classes, name="predictions"):
    return keras.Model(inputs, layers.Dense(classes, name=name)(x))


def alexnet(size, alpha, classes, units):
    def response_normalized(x):
        return layers.Lambda(lambda x: tf.nn.local_response_normalization(x, 2, 2.0, 1e-4, 0.75))(x)

    x = inputs = keras.Input((size, size, 3))
    for number, (filters, kernel, groups) in enumerate(
        ((96, 11, 1), (256, 5, 2), (384, 3, 1), (384, 3, 2), (256, 3, 2)), start=1
    ):
        strides, padding = (4, "valid") if number == 1 else (1, "same")
        kind = GroupedConv2D if groups > 1 else layers.Conv2D
        x = rectified(x, kind(int(filters * alpha), kernel, strides, padding, groups=groups, name=f"conv{number}"))
        x = response_normalized(x) if number <= 2 else x
        x = x if number in (3, 4) else layers.MaxPooling2D(3, 2)(x)
    return hidden_layers(inputs, x, units, classes)


def alexnet_one_column(size, alpha, classes, units):
    x = inputs = keras.Input((size, size, 3))
    x = layers.ZeroPadding2D(2)(x)
    for number, (filters, kernel) in enumerate(((64, 11), (192, 5), (384, 3), (256, 3), (256, 3)), start=1):
        strides, padding = (4, "valid") if number == 1 else (1, "same")
        x = rectified(x, layers.Conv2D(int(filters * alpha), kernel, strides, padding, name=f"conv{number}"))
        x = x if number in (3, 4) else layers.MaxPooling2D(3, 2)(x)
    return hidden_layers(inputs, x, units, classes)


def hidden_layers(inputs, x, units, classes):
    x = layers.Flatten()(x)
    for name in ("fc6", "fc7"):
        x = rectified(x, layers.Dense(units, name=name))
    return classifier(inputs, x, classes, "fc8")


def lenet5(size, classes):
    x = inputs = keras.Input((size, size, 1))
    x = layers.AveragePooling2D(2)(layers.Conv2D(6, 5, padding="same", activation="tanh", name="c1")(x))
    x = layers.AveragePooling2D(2)(layers.Conv2D(16, 5, activation="tanh", name="c3")(x))
    x = layers.Dense(120, activation="tanh", name="c5")(layers.Flatten()(x))
    return classifier(inputs, layers.Dense(84, activation="tanh", name="f6")(x), classes, "output")


def lenet_deepcl(size, classes, units):
    x = inputs = keras.Input((size, size, 1))
    x = layers.MaxPooling2D(2)(rectified(x, layers.Conv2D(8, 5, padding="same", name="conv1")))
    x = layers.MaxPooling2D(3)(rectified(x, layers.Conv2D(16, 5, padding="same", name="conv2")))
    x = layers.Dense(units, activation="tanh", name="hidden")(layers.Flatten()(x))
    return classifier(inputs, x, classes, "output")


def squeezenet(size, alpha, classes):
    he = partial(layers.Conv2D, kernel_initializer="he_normal")  # so that values don't shrink to near ties
    x = inputs = keras.Input((size, size, 3))
    x = layers.MaxPooling2D(3, 2)(rectified(x, he(int(64 * alpha), 3, 2, name="conv1")))
    for number in range(2, 10):
        narrow, wide = (int(n * (number // 2) * alpha) for n in (16, 64))
        name = f"fire{number}"
        x = rectified(x, he(narrow, 1, name=f"{name}_squeeze"))
        left = rectified(x, he(wide, 1, name=f"{name}_expand1x1"))
        right = rectified(x, he(wide, 3, padding="same", name=f"{name}_expand3x3"))
        x = layers.Concatenate()([left, right])
        x = layers.MaxPooling2D(3, 2)(x) if number in (3, 5) else x
    x = rectified(x, he(classes, 1, name="conv10"))
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))


class Unit:
    """Adds a convolution, BatchNormalization and, unless it is None, a ReLU with this largest value."""

    def __init__(self, momentum=0.9, epsilon=1e-5, largest=None, norm="{}_bn"):
        self.norm, self.largest, self.settings = norm, largest, {"momentum": momentum, "epsilon": epsilon}

    def __call__(self, x, name, layer, rectifies=True, norm=""):
        x = layer(x)
        x = layers.BatchNormalization(name=norm or self.norm.format(name), **self.settings)(x)
        return layers.ReLU(self.largest)(x) if rectifies else x


def conv(name, filters, kernel=1, strides=1, padding="same", use_bias=False):
    return layers.Conv2D(filters, kernel, strides, padding, use_bias=use_bias, name=name)


class DepthwiseConv2D(layers.DepthwiseConv2D):
    """A sum of shifted products: TensorFlow's own gradient in float64 corrupts the heap for images of a few pixels."""

    def call(self, x):
        (kernel, _), (stride, _) = self.kernel_size, self.strides
        if self.padding == "same":
            totals = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[1:3]]
            x = tf.pad(x, [(0, 0), *((total // 2, total - total // 2) for total in totals), (0, 0)])
        ends = [n - kernel + 1 for n in x.shape[1:3]]
        return tf.add_n([
            x[:, i : i + ends[0] : stride, j : j + ends[1] : stride] * self.kernel.value[i, j, :, 0]
            for i in range(kernel) for j in range(kernel)
        ])  # fmt: skip


def depthwise(name, kernel, strides=1, padding="same"):
    return DepthwiseConv2D(kernel, strides, padding, use_bias=False, name=name)


def channels_of(number):
    """Rounded as MobileNets are: to a multiple of 8, not below 90 %."""
    nearest = max(8, int(number + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * number else nearest + 8


def shufflenet_v2(size, alpha, classes):
    add, widths = Unit(), {0.5: (48, 96, 192, 1024)}[alpha]

    def branch(x, name, half, strides, first):
        x = add(x, f"{name}_first", conv(f"{name}_first", half)) if first else x
        name_of = f"{name}_depthwise"
        x = add(around(x, 1), name_of, depthwise(name_of, 3, strides, "valid"), rectifies=False)
        return add(x, f"{name}_last", conv(f"{name}_last", half))

    x = inputs = keras.Input((size, size, 3))
    x = add(around(x, 1), "conv1", conv("conv1", 24, 3, 2, "valid"))
    x = layers.MaxPooling2D(3, 2)(around(x, 1))
    for stage, (width, blocks) in enumerate(zip(widths[:3], (4, 8, 4), strict=True), start=2):
        half = width // 2
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            if block == 1:
                left, right = branch(x, f"{name}_left", half, 2, False), branch(x, f"{name}_right", half, 2, True)
            else:
                left = layers.Lambda(lambda x, half=half: x[..., :half])(x)
                right = layers.Lambda(lambda x, half=half: x[..., half:])(x)
                right = branch(right, f"{name}_right", half, 1, True)
            x = layers.Concatenate()([left, right])
            order = [i + part * half for i in range(half) for part in (0, 1)]
            x = layers.Lambda(lambda x, order=order: tf.gather(x, order, axis=-1))(x)
    x = add(x, "conv5", conv("conv5", widths[3]))
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), classes)


def proxylessnas_mobile(size, alpha, classes):
    add = Unit(epsilon=1e-3, largest=6.0)
    rows = ((16, 1, "3.1"), (32, 2, "5.3 3.3"), (40, 2, "7.3 3.3 5.3 5.3"), (80, 2, "7.6 5.3 5.3 5.3"),
            (96, 1, "5.6 5.3 5.3 5.3"), (192, 2, "7.6 7.6 7.3 7.3"), (320, 1, "7.6"))  # fmt: skip
    x = inputs = keras.Input((size, size, 3))
    x = add(around(x, 1), "stem", conv("stem", channels_of(32 * alpha), 3, 2, "valid"))
    for stage, (filters, stride, blocks) in enumerate(rows, start=1):
        for number, block in enumerate(blocks.split(), start=1):
            kernel, expansion = map(int, block.split("."))
            name, before = f"stage{stage}_block{number}", x
            if expansion > 1:
                x = add(x, f"{name}_expand", conv(f"{name}_expand", x.shape[-1] * expansion))
            name_of = f"{name}_depthwise"
            layer = depthwise(name_of, kernel, stride if number == 1 else 1, "valid")
            x = add(around(x, kernel // 2), name_of, layer)
            name_of = f"{name}_project"
            x = add(x, name_of, conv(name_of, channels_of(filters * alpha)), rectifies=False)
            x = layers.Add()([before, x]) if x.shape == before.shape else x
    x = add(x, "head", conv("head", 1280))
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), classes)


def efficientnet_lite0(size, alpha, classes):
    add = Unit(0.99, 1e-3, 6.0)
    rows = ((3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1),
            (5, 6, 192, 4, 2), (3, 6, 320, 1, 1))  # fmt: skip
    x = inputs = keras.Input((size, size, 3))
    x = add(x, "stem", conv("stem_conv", 32, 3, 2))
    for stage, (kernel, expansion, filters, blocks, stride) in enumerate(rows, start=1):
        for number in range(blocks):
            name, before = f"block{stage}{'abcd'[number]}_", x
            if expansion > 1:
                x = add(x, "", conv(f"{name}expand_conv", x.shape[-1] * expansion), norm=f"{name}expand_bn")
            x = add(x, "", depthwise(f"{name}dwconv", kernel, 1 if number else stride), norm=f"{name}bn")
            project = conv(f"{name}project_conv", channels_of(filters * alpha))
            x = add(x, "", project, rectifies=False, norm=f"{name}project_bn")
            x = layers.Add()([before, x]) if x.shape == before.shape else x
    x = add(x, "top", conv("top_conv", 1280))
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), classes)


def resnet8(size, alpha, classes):
    add = Unit(0.99, 1e-3)
    x = inputs = keras.Input((size, size, 3))
    x = add(x, "stem", conv("stem", int(16 * alpha), 3, use_bias=True))
    for number, (filters, strides) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        name, width, before = f"block{number}", int(filters * alpha), x
        if strides > 1:  # TensorFlow's own gradient of padding="same" corrupts the heap here in float64
            x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
        padding = "same" if strides == 1 else "valid"
        x = add(x, f"{name}_1", conv(f"{name}_1", width, 3, strides, padding, use_bias=True))
        x = add(x, f"{name}_2", conv(f"{name}_2", width, 3, use_bias=True), rectifies=False)
        if strides > 1:
            before = conv(f"{name}_0", width, 1, strides, "valid", use_bias=True)(before)
        x = layers.ReLU()(layers.Add()([before, x]))
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), classes)


def resnet34(size, alpha, classes, bottleneck=False):
    add = Unit(norm="{}_bn")

    def convolution(x, name, filters, kernel=1, strides=1, rectifies=True):
        layer = conv(f"{name}_conv", filters, kernel, strides, "valid")
        return add(around(x, kernel // 2), name, layer, rectifies)

    x = inputs = keras.Input((size, size, 3))
    x = convolution(x, "conv1", int(64 * alpha), 7, 2)
    x = layers.MaxPooling2D(3, 2)(around(x, 1))
    for stage, blocks in enumerate((3, 4, 6, 3), start=2):
        filters = int(64 * 2 ** (stage - 2) * alpha)
        width = 4 * filters if bottleneck else filters
        for block in range(1, blocks + 1):
            name, before, strides = f"conv{stage}_block{block}", x, 2 if block == 1 and stage > 2 else 1
            if strides > 1 or x.shape[-1] != width:
                before = convolution(x, f"{name}_0", width, 1, strides, rectifies=False)
            if bottleneck:
                x = convolution(x, f"{name}_1", filters)
                x = convolution(x, f"{name}_2", filters, 3, strides)
                x = convolution(x, f"{name}_3", width, rectifies=False)
            else:
                x = convolution(x, f"{name}_1", filters, 3, strides)
                x = convolution(x, f"{name}_2", filters, 3, rectifies=False)
            x = layers.ReLU()(layers.Add()([before, x]))
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), classes)


def resnet50(size, alpha, classes):
    return resnet34(size, alpha, classes, bottleneck=True)
