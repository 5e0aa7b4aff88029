"""Our speed beside the alternatives."""
