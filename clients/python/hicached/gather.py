"""One dense view of pages that stand each on its owner rank: the CPU reference of materialisation."""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Any


class GatherError(ValueError):
    """A call that was refused; nothing was written."""

    def __init__(self, code: int, why: str):
        super().__init__(why)
        self.code = code


def gather(shards: Sequence[Any], page_bytes: int, pages: Sequence[int], view: Any) -> None:
    """Gathers ``pages`` of one layer of one component into ``view``, ``[position][page_bytes]``.

    ``shards`` has the layer's region of each rank, by rank, ``[physical page][page_bytes]``; logical page ``l`` stands
    on rank ``l % len(shards)`` as its physical page ``l // len(shards)``. All memory is a writable, contiguous buffer
    that starts at a multiple of 16. Raises :class:`GatherError` with nothing written.
    """
    held = [_memory(shard) for shard in shards]
    regions = (_Shard * len(held))(*(_Shard(ctypes.addressof(memory), len(memory)) for memory in held))
    ids = (ctypes.c_uint32 * len(pages))(*pages)
    into = _memory(view)
    why = ctypes.create_string_buffer(256)
    code = _library().hicached_gather(
        regions, len(held), page_bytes, ids, len(ids), ctypes.addressof(into), len(into), why, len(why)
    )
    if code != 0:
        raise GatherError(code, why.value.decode())


class _Shard(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


def _memory(buffer: Any) -> ctypes.Array:
    bytes_ = memoryview(buffer).cast("B")
    return (ctypes.c_uint8 * len(bytes_)).from_buffer(bytes_)


@cache
def _library() -> ctypes.CDLL:
    """The library that ``HICACHED_KERNELS`` names, or the system's."""
    library = ctypes.CDLL(os.environ.get("HICACHED_KERNELS", "libhicached_kernels.so"))
    library.hicached_gather.restype = ctypes.c_int32
    library.hicached_gather.argtypes = [
        ctypes.POINTER(_Shard),
        ctypes.c_uint32,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_uint64,
    ]
    return library
