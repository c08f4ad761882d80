/* What hicached offers to engines as a library: libhicached_kernels. */
#ifndef HICACHED_H
#define HICACHED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's pages of one layer of one component, mapped for reading: page p stands at p * page_bytes. */
typedef struct {
    const void *start; /* at a multiple of 16 */
    uint64_t bytes;    /* whole pages, the padding page 0 among them */
} hicached_shard;

/* Why a gather was refused. */
enum {
    HICACHED_GATHERED = 0,
    HICACHED_RANKS = 1,       /* ranks is not 1 to 64 */
    HICACHED_PAGE_BYTES = 2,  /* page_bytes is 0 or no multiple of 16 */
    HICACHED_SHARD_BYTES = 3, /* a shard is no whole number of pages */
    HICACHED_OVERLAP = 4,     /* the view shares memory with a shard */
    HICACHED_MISALIGNED = 5,  /* a shard or the view starts at no multiple of 16 */
    HICACHED_VIEW_BYTES = 6,  /* view_bytes is not page_count * page_bytes */
    HICACHED_PAGE = 7         /* a page that its owner does not have, or its padding page */
};

/*
 * Gathers page_count pages of one layer of one component into view, [position][page_bytes], on the calling thread.
 * shards has the layer's region of each rank of the group, by rank; logical page l stands on rank l % ranks as its
 * physical page l / ranks. The engine holds the pages for the time of the call: a session of its own pins them.
 *
 * Returns HICACHED_GATHERED, or the code of the first fault with nothing written, and in why (why_bytes bytes, or
 * null) a sentence with a zero behind it.
 */
int32_t hicached_gather(const hicached_shard *shards, uint32_t ranks, uint64_t page_bytes, const uint32_t *pages,
                        uint64_t page_count, void *view, uint64_t view_bytes, char *why, uint64_t why_bytes);

#ifdef __cplusplus
}
#endif
#endif
