"""Scaling laws, word2vec, and scikit-learn estimators."""
