"""What went wrong in the user's input -> one message that says where and how to go on."""

import importlib
from types import ModuleType


class InputError(ValueError):
    """Bad usage or bad input: the command prints the message without a traceback and exits with 2."""


def import_extra(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra of ours installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{module} is not installed: pip install 'electra[{extra}]' ({error})") from error
