"""Pure rules: no I/O, clock, randomness, logging, threads or event loop."""
