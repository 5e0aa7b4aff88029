"""Labelled data -> heads -> scores."""
