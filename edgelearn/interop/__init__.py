"""A file format a file."""
