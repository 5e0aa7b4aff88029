"""A model -> an HTTP API and a web page.

Importing this room without the packages of the extra `serve` says how to install them.
"""

from electra.errors import import_extra

for _module in ("fastapi", "prometheus_client", "uvicorn"):
    import_extra(_module, extra="serve")
