"""The process behind `freezer.Freezer`: loads SavedModels with TensorFlow and writes them as frozen GraphDefs.

    python freezer_worker.py

It prints "ready" once TensorFlow is imported. Then a request is a line of JSON, [folder, file to write], and its answer
a line of JSON: null, or the reason why it can't be loaded.
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what TensorFlow prints is no answer
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        folder, path = json.loads(line)
        try:
            model = tf.saved_model.load(folder)  # it keeps the variables
            signatures = model.signatures
            if not signatures:
                raise ValueError("it has no signature")
            name = "serving_default" if "serving_default" in signatures else sorted(signatures)[0]
            frozen = convert_to_constants.convert_variables_to_constants_v2(signatures[name])
            with open(path, "wb") as file:
                file.write(frozen.graph.as_graph_def().SerializeToString())
            reason = None
        except Exception as error:  # TensorFlow has errors of every kind
            reason = f"{type(error).__name__}: {error!s:.500}"
        print(json.dumps(reason), file=answers, flush=True)


if __name__ == "__main__":
    main()
