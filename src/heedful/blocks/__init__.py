"""The small set of parts every model is built from; they import torch and nothing else."""
