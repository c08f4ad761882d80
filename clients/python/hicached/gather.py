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
    on rank ``l % len(shards)`` as its physical page ``l // len(shards)``. All memory is contiguous and starts at a
    multiple of 16; the view is writable. Raises :class:`GatherError` with nothing written.
    """
    for position, page in enumerate(pages):
        if not 0 <= page < 2**32:
            raise GatherError(_PAGE, f"position {position}: page {page} is no page id, use 0..{2**32}")
    held = [_Readable(shard) for shard in shards]
    regions = (_Shard * len(held))(*(_Shard(memory.start, memory.bytes) for memory in held))
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


class _Buffer(ctypes.Structure):
    """What the interpreter tells of a buffer."""

    _fields_ = [
        ("start", ctypes.c_void_p),
        ("object", ctypes.c_void_p),
        ("bytes", ctypes.c_ssize_t),
        ("item_bytes", ctypes.c_ssize_t),
        ("is_read_only", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


class _Readable:
    """Memory that is only read, and may be mapped for that alone; held as long as this lives."""

    def __init__(self, buffer: Any):
        self._held = _Buffer()
        if ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(self._held), 0) != 0:
            raise BufferError("no contiguous buffer")
        self.start, self.bytes = self._held.start, self._held.bytes

    def __del__(self) -> None:
        if self._held.start is not None:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._held))


def _memory(buffer: Any) -> ctypes.Array:
    bytes_ = memoryview(buffer).cast("B")
    return (ctypes.c_uint8 * len(bytes_)).from_buffer(bytes_)


_PAGE = 7


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
