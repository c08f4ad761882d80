"""Runs against the library that HICACHED_KERNELS names."""

import mmap
import tempfile
import unittest

from hicached import GatherError, gather

PAGE_BYTES = 32
PAGES = 4


def region(fill):
    """Memory of a rank, at a page of the system."""
    memory = mmap.mmap(-1, PAGES * PAGE_BYTES)
    memory.write(b"".join(bytes([fill + page]) * PAGE_BYTES for page in range(PAGES)))
    return memory


class Gather(unittest.TestCase):
    def setUp(self):
        self.shards = [region(0), region(16)]
        self.view = mmap.mmap(-1, 3 * PAGE_BYTES)

    def test_pages_stand_at_their_positions(self):
        gather(self.shards, PAGE_BYTES, [2, 7, 4], self.view)
        self.assertEqual(self.view[:], b"".join(bytes([fill]) * PAGE_BYTES for fill in (1, 19, 2)))

    def test_a_page_that_nobody_has_is_refused_and_nothing_is_written(self):
        for page in (0, 1, 8, 2**32 - 1, 2**32 + 2, -1):
            with self.assertRaisesRegex(GatherError, f"position 1: page {page} ") as caught:
                gather(self.shards, PAGE_BYTES, [2, page, 4], self.view)
            self.assertEqual(caught.exception.code, 7)
        self.assertEqual(self.view[:], bytes(3 * PAGE_BYTES))

    def test_memory_that_is_mapped_for_reading_is_enough(self):
        with tempfile.TemporaryFile() as file:
            file.write(self.shards[0][:])
            file.flush()
            shard = mmap.mmap(file.fileno(), PAGES * PAGE_BYTES, access=mmap.ACCESS_READ)
            gather([shard, self.shards[1]], PAGE_BYTES, [2, 7, 4], self.view)
            self.assertEqual(self.view[:], b"".join(bytes([fill]) * PAGE_BYTES for fill in (1, 19, 2)))
            shard.close()

    def test_a_view_of_another_size_is_refused(self):
        with self.assertRaisesRegex(GatherError, "96 bytes for 2 pages of 32"):
            gather(self.shards, PAGE_BYTES, [2, 3], self.view)


if __name__ == "__main__":
    unittest.main()
