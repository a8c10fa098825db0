"""A technique a folder: what it is, how to run it, and the figures to expect."""
