"""A model -> other formats, and answers for programs and people: load, import, export, serve."""
