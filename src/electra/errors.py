"""A mistake in the user's input -> one message that says where it is and what to do."""

import importlib
from types import ModuleType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as the shell would have it."""


class InputError(ValueError):
    """Bad usage or bad input: the command prints the message without a traceback and exits with 2."""


def import_extra(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{module} is not installed: pip install 'electra[{extra}]' ({error})") from error
