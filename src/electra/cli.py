"""`electra VERB ...` -> the verb's module in `run/`, imported only when it is asked for."""

import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Protocol, cast

from electra import show
from electra.errors import InputError

# The table of contents of the product: what each verb does, in the order a person meets them.
VERBS = {
    "demo": "the whole path on the text every Python installation carries",
    "prepare": "corpus -> tokenizer + token rows + manifest",
    "plan": "settings -> parameters, FLOPs, memory, time and cost, before anything runs",
    "pretrain": "rows -> run folder with checkpoints, metrics and the trained encoders",
    "finetune": "model + task -> scores over seeds, fine-tuned model, report",
    "evaluate": "fine-tuned model + labelled data -> scores",
    "predict": "fine-tuned model + data -> predictions, submission files",
    "import": "models of transformers or of the original TensorFlow code -> ours, to use or to train on",
    "export": "a model -> a folder for transformers or ONNX (fp32, int8), with a model card",
    "serve": "a model -> an HTTP API, and a page to play the game of the paper",
    "bench": "our speed beside the alternatives and the machine's own peak, in one run",
    "report": "run folders -> one page with curves, health and samples",
}

# What Python does not allow as the name of a module.
_MODULES = {"import": "importing"}

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class Verb(Protocol):
    """What a module in `run/` offers."""

    def main(self, arguments: Sequence[str]) -> None:
        """Do the verb's work; raise InputError for bad input."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 2 bad usage or input, 1 failure, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = words.pop(0) if words else "--help"
    if verb in ("-h", "--help"):
        print(_help())
        return OK
    if verb == "--version":
        from electra import __version__

        print(f"electra {__version__}")
        return OK
    if verb not in VERBS:
        hint = show.did_you_mean(verb, VERBS)
        return _complain(f"unknown command {verb!r}{hint} (see 'electra --help')", BAD_INPUT)
    # A polite kill ends a command as Ctrl-C does: clean up, keep what is whole, say how to go on.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        cast(Verb, importlib.import_module(f"electra.run.{_MODULES.get(verb, verb)}")).main(words)
    except InputError as error:
        return _complain(str(error), BAD_INPUT)
    except BrokenPipeError:
        # `electra ... | head`: the reader has seen enough. Closing stderr keeps Python's own complaint away.
        sys.stderr.close()
        return OK
    except KeyboardInterrupt as interruption:
        return _complain(f"interrupted{_after_colon(interruption)}", INTERRUPTED)
    except OSError as error:
        return _complain(f"{type(error).__name__}: {error}", FAILURE)
    return OK


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _after_colon(error: BaseException) -> str:
    return f": {error}" if str(error) else ""


def _complain(message: str, code: int) -> int:
    print(f"electra: {message}", file=sys.stderr)
    return code


def _help() -> str:
    return "\n".join(
        [
            "usage: electra COMMAND [--key value ...] [--config FILE.yaml]",
            "",
            "Pre-train an efficient text encoder on your own text, fine-tune it, ship it.",
            "",
            show.table(VERBS),
            "",
            "'electra COMMAND --help' lists the keys of a command, '--print_config' their values,",
            "'electra --version' the version.",
        ]
    )
