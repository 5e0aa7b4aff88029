"""How any loss is minimised: optimizers, schedules."""
