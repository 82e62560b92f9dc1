"""What stands beside the models: scaling laws, word2vec, and estimators by scikit-learn's conventions."""
