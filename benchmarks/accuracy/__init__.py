"""Accuracy on GPUs: the estimator over sets of runs that others measured."""
