"""Heads of tasks <-> their variables in the authors' dumps, which lie under task_specific/{task}/."""

from electra.model.names import name_table

TASK_HEADS = {
    "ClassificationHead": name_table("output - dense dense"),
    "RegressionHead": name_table("output - dense dense"),
    "TaggingHead": name_table("output classifier dense dense"),
    "SpanHead": name_table("start - dense dense\nend - dense_1 dense"),
    "JointSpanHead": name_table("start - dense dense\nend_dense - qa_hidden dense\nend - dense_1 dense"),
    "UnanswerableHead": name_table("dense - dense_2 dense\noutput - dense_3 dense"),
}
