"""Data sets: flower photographs, CIFAR-10, Speech Commands, folders of pictures or recordings, synthetic ones.

Modules are imported on demand, to keep `import edgelearn` fast.
"""

RATE = 16_000  # samples per second of clips
