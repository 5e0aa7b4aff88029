"""One file per verb: its config and its `main`."""
