"""What the numbers mean: who holds the peak, and what explains a difference."""
