"""What studies cost, and how far their answers can be trusted. Each module is one command."""
