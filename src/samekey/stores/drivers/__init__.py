"""Drivers: who executes a backend's statements. They map errors and know nothing of keys."""
