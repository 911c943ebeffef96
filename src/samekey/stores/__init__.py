"""Stores keep the records. Each performs the steps of ``core.ops`` in its own way."""
