"""Run folders -> pictures and pages: reads files only, knows nothing of how they were made."""

from pathlib import Path

from electra import files
from electra.errors import InputError, import_extra


def write_report(folder: Path) -> str:
    """Write report.html into a finished run or fine-tuning: where it is, or why it was not written.

    A training that took days must not fail for its report.
    """
    try:
        import_extra("matplotlib", extra="report")
        # These import matplotlib, so only now.
        from electra.report.finetune import write_finetune_report
        from electra.report.page import page
        from electra.report.runs import read_runs
        from electra.report.studies import SCORES

        if (folder / SCORES).is_file():
            return str(write_finetune_report(folder))
        html, path = page(read_runs([folder])).encode(), folder / "report.html"
        files.write_file(path, lambda file: file.write(html))
    except (InputError, OSError) as error:
        return f"not written: {error}"
    return str(path)
