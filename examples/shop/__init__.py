"""A small shop API whose orders and refunds may be retried safely. Run it: ``samekey demo``."""
