"""How any loss is minimised: loop, optimizers, schedules, checkpoints, devices, health."""
