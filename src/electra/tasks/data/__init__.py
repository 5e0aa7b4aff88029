"""Files of labelled data -> tasks."""
