"""The one way to private data: a curator is asked for noisy means, and for nothing else."""
