"""PyTorch: tracing on phantom tensors, real runs, models by name."""
