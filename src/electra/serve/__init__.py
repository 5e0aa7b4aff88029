"""A model -> an HTTP API and a page."""
