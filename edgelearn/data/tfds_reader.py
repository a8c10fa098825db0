"""Child process: read a data set through TensorFlow Datasets and write its examples to stdout.

    python -P tfds_reader.py REQUEST

REQUEST is a JSON object: "split", "feature", "label", and either "prepared" (a folder that holds a
prepared data set; the network isn't touched) or "download" ("name:version") with "data_dir" (or null).

Output: one line of JSON, {"class_names": [...], "count": n}, then n records: label and length as two
little-endian uint32, and the example: encoded for an "image", otherwise little-endian numbers. All
other output to stdout is redirected to stderr.
"""

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

RECORD_HEAD = struct.Struct("<II")


def main(request: dict):
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps progress bars and notices out of the records
    write(request, output)
    output.close()


def write(request: dict, output: BinaryIO):
    """Write the output to a file. Raises SystemExit, with the reason, for data that can't be read."""
    import tensorflow_datasets as tfds

    builder: Any
    if "prepared" in request:
        builder = tfds.builder_from_directory(request["prepared"])
    else:
        builder = tfds.builder(request["download"], data_dir=request["data_dir"])
        builder.download_and_prepare()
    encoded = request["feature"] == "image"
    examples = builder.as_dataset(
        split=request["split"],
        shuffle_files=False,
        decoders={"image": tfds.decode.SkipDecoding()} if encoded else None,
        read_config=tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1),  # one file after another
    )
    head = {
        "class_names": builder.info.features[request["label"]].names,
        "count": builder.info.splits[request["split"]].num_examples,
    }
    output.write(json.dumps(head).encode() + b"\n")
    try:
        for example in tfds.as_numpy(examples):
            value = example[request["feature"]]
            content = value if encoded else value.astype(value.dtype.newbyteorder("<")).tobytes()
            output.write(RECORD_HEAD.pack(int(example[request["label"]]), len(content)))
            output.write(content)
    except Exception as error:
        # TensorFlow reports the byte at which a file is damaged, but not which file.
        damaged = _first_unreadable(builder.info.splits[request["split"]].filepaths)
        raise SystemExit(f"{damaged} is damaged: {error}" if damaged else f"{error}") from error


def _first_unreadable(files) -> Path | None:
    import tensorflow as tf

    for file in files:
        try:
            for _ in tf.data.TFRecordDataset(os.fspath(file)):
                pass
        except tf.errors.OpError:
            return Path(file)
    return None


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
