"""Tools for proving things: the explorer of schedules, and ``override`` for an application's own tests."""

from __future__ import annotations

from samekey.testing.override import override

__all__ = ["override"]
