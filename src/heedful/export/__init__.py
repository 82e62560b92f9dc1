"""Models as files for other programs: ONNX, CTranslate2 and PyTorch packages, each checked against the model."""
