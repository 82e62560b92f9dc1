"""The contracts of a model, checked on any module: ours, one of Hugging Face, or the user's own (`heedful.doctor`)."""
