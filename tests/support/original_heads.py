"""Heads of tasks <-> their variables in the authors' dumps, which lie under task_specific/{task}/."""

from electra.model.names import table

TASK_HEADS = {
    "ClassificationHead": table("output - dense dense"),
    "RegressionHead": table("output - dense dense"),
    "TaggingHead": table("output classifier dense dense"),
    "SpanHead": table("start - dense dense\nend - dense_1 dense"),
    "JointSpanHead": table("start - dense dense\nend_dense - qa_hidden dense\nend - dense_1 dense"),
    "UnanswerableHead": table("dense - dense_2 dense\noutput - dense_3 dense"),
}
