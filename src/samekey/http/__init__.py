"""Pure HTTP: keys read, answers recorded and replayed, problems written, with no framework and no I/O."""
