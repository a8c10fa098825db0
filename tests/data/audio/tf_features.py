"""Child process: features of clips as TensorFlow computes them, so that no test holds TensorFlow in memory.

    python tf_features.py CLIPS.npy SETTINGS.json OUT.npz

SETTINGS is a list of LogMel's fields; OUT has "log_mel0", "mfcc0", ... in float64, of tf.signal, and "arm" (n, 49, 10),
of the ops that TensorFlow 1 graphs of DS-CNN begin with.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

clips, settings = np.load(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
out = {}
for number, one in enumerate(settings):
    frames = tf.signal.stft(clips.astype(np.float64), one["window"], one["hop"], one["fft"])
    matrix = tf.signal.linear_to_mel_weight_matrix(
        one["bands"], one["fft"] // 2 + 1, one["rate"], float(one["low"]), float(one["high"]), tf.float64
    )
    log_mel = tf.math.log(tf.abs(frames) ** one["power"] @ matrix + one["offset"])
    out[f"log_mel{number}"] = log_mel.numpy()
    out[f"mfcc{number}"] = tf.signal.mfccs_from_log_mel_spectrograms(log_mel).numpy()
out["arm"] = np.concatenate([
    tf.raw_ops.Mfcc(
        spectrogram=tf.raw_ops.AudioSpectrogram(
            input=clip[:, None], window_size=640, stride=320, magnitude_squared=True
        ),
        sample_rate=16000, lower_frequency_limit=20, upper_frequency_limit=4000, filterbank_channel_count=40,
        dct_coefficient_count=10,
    )
    for clip in clips
])  # fmt: skip
np.savez(sys.argv[3], **out)
