"""The text and the tasks of `electra demo`, which every Python installation brings along."""
