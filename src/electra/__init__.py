"""Pre-train efficient text encoders by replaced token detection."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    # Looked up when asked for: reading the package's metadata takes a tenth of `electra --help`.
    if name == "__version__":
        from importlib.metadata import version

        return version("electra")
    raise AttributeError(f"module 'electra' has no attribute {name!r}")
