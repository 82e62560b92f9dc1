"""Scaling laws, word2vec, scikit-learn estimators, and what image models have learned."""
