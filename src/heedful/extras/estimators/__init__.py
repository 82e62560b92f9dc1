"""Estimators by the conventions of scikit-learn: they fit, transform and score, alone or in a pipeline."""
