"""Models <-> the formats of other programs: transformers, TensorFlow, ONNX; and a card."""
