"""Rows -> masked and corrupted batches -> losses: one file per objective."""
