"""Ray that waits for its own processes: tests share the machine, and Ray gives up after 20 s or 30 s.

import patient_ray    or    python -m patient_ray start ...
"""

import os
import time

# Set before Ray is imported. How soon Ray misses a node that has died is none of these.
os.environ.setdefault("RAY_agent_register_timeout_ms", "480000")
os.environ.setdefault("RAY_worker_register_timeout_seconds", "480")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "480")
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "480")
os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "480")
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "480")

from ray._private import services

PATIENCE = 480.0
_get_node = services.get_node


def _get_node_at_last(*arguments, **keywords):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return _get_node(*arguments, **keywords)
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


services.get_node = _get_node_at_last

if __name__ == "__main__":
    from ray.scripts.scripts import main

    main()
