"""What samekey costs, measured against the bare application in the same run: ``python -m bench``."""
