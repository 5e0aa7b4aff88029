"""Run folders -> pictures and pages: reads files only, knows nothing of how they were made."""
