"""hicached for engines written in Python."""

from .gather import GatherError, gather

__all__ = ["GatherError", "gather"]
