"""A model in a folder -> answers about texts."""
