"""Kinds of tasks: each says everything about itself in one file."""
