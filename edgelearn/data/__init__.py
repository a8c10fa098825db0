"""Data sets: flower photographs, CIFAR-10, folders of pictures, synthetic drawings; audio is in audio/.

Modules are imported on demand, to keep `import edgelearn` fast.
"""
