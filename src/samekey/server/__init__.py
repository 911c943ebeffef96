"""The server half: adapters that translate between a web framework and the engines."""
