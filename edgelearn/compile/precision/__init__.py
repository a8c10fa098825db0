"""Number formats and ranges of the tensors of a plan."""
