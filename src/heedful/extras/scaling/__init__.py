"""Scaling laws (Kaplan et al., 2020): a sweep of runs, the power laws fitted to their losses, and a figure of both.

N is the number of parameters without embeddings, D the tokens seen in training, C = 6 N D the compute in floating-point
operations, and L the loss on the validation set at the end of a run, in nats per token.
"""
