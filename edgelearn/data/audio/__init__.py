"""Audio data sets (folders of recordings by word, Speech Commands, synthetic words) and their features.

A clip is mono float32 samples in -1..1, at RATE samples per second unless another rate is given.
"""

RATE = 16_000  # samples per second
