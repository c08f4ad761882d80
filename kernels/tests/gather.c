#include <hicached.h>
#include <stdio.h>
#include <string.h>

#define PAGE_BYTES 32
#define PAGES 4

typedef struct {
    unsigned char bytes[PAGES][PAGE_BYTES];
} __attribute__((aligned(16))) region;

static region ranks[2];
static unsigned char view[3][PAGE_BYTES] __attribute__((aligned(16)));

int main(void) {
    const hicached_shard shards[2] = {{&ranks[0], sizeof ranks[0]}, {&ranks[1], sizeof ranks[1]}};
    const uint32_t pages[3] = {2, 7, 4}, padding[3] = {2, 1, 4};
    char why[80];
    int rank, page;
    for (rank = 0; rank < 2; rank++)
        for (page = 0; page < PAGES; page++) memset(ranks[rank].bytes[page], 16 * rank + page, PAGE_BYTES);

    if (hicached_gather(shards, 2, PAGE_BYTES, padding, 3, view, sizeof view, why, sizeof why) != HICACHED_PAGE) return 1;
    if (strstr(why, "position 1: page 1") == NULL || view[0][0] != 0) return 2;
    if (hicached_gather(shards, 2, PAGE_BYTES, pages, 3, view, 64, NULL, 0) != HICACHED_VIEW_BYTES) return 3;
    if (hicached_gather(shards, 2, PAGE_BYTES, pages, 3, view, sizeof view, NULL, 0) != HICACHED_GATHERED) return 4;
    return view[0][0] == 1 && view[1][31] == 16 + 3 && view[2][0] == 2 ? 0 : 5;
}
