"""The functions of `el.lab`, which edgelearn/lab/__init__.py lists: each makes or runs an experiment in one call of a
notebook, and returns an object that shows itself."""
