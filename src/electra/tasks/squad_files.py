"""Predictions -> files in the official format of SQuAD.

    predictions.json        {id: text}: the best answer, also where there seems to be none
    nbest_predictions.json  {id: [{"text", "probability", "start_logit", "end_logit"}, ...]}

and only where questions may have no answer

    null_odds.json          {id: number}: the higher, the less there seems to be an answer
    final_predictions.json  {id: text}: "" where the null odds are above the family's threshold

As in the original, the official script is given predictions.json with `--na-prob-file null_odds.json
--na-prob-thresh -2.75` and also searches for the best threshold. The last file is the one to hand in.
"""

from collections.abc import Mapping
from pathlib import Path

from electra import files
from electra.tasks.family import Prediction


def write_squad_files(folder: Path, predictions: Mapping[str, Prediction]) -> list[Path]:
    """Write the predictions, by the id of the question, and say which files were made."""
    columns = {"predictions": "text", "nbest_predictions": "n_best"}
    if all("null_odds" in prediction for prediction in predictions.values()):
        columns |= {"null_odds": "null_odds", "final_predictions": "answer"}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, key in columns.items():
        path = folder / f"{name}.json"
        files.write_json(path, {id: prediction[key] for id, prediction in predictions.items()})
        written.append(path)
    return written
