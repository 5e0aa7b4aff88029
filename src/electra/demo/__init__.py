"""The text and the tasks of `electra demo`: what every Python installation carries."""
