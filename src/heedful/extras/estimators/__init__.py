"""scikit-learn estimators: PCA and autoencoders."""
