"""Bytes -> documents -> examples -> rows -> batches."""
