"""Files of text and tables -> documents -> examples -> rows of tokens -> batches."""
