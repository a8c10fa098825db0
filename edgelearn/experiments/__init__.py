"""The experiments: what each is, how to run it, and the figures to expect."""
