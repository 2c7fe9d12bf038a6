/* DESIGN: random, not counted, so that ids of two servers or two starts do not meet in one log. */
#include "server/http/http_id.h"

#include "config/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void http_id_choose(const char *from_client, char id[HTTP_ID_MAX + 1])
{
    size_t n = from_client ? strlen(from_client) : 0;
    bool good = n > 0 && n <= HTTP_ID_MAX;
    for (size_t i = 0; i < n && good; i++)
        good = from_client[i] > ' ' && from_client[i] < 0x7f;
    uint64_t random = 0;
    if (good)
        memcpy(id, from_client, n + 1);
    else if (getrandom(&random, sizeof random, 0) == (ssize_t)sizeof random)
        snprintf(id, HTTP_ID_MAX + 1, "req-%016" PRIx64, random);
    else
        snprintf(id, HTTP_ID_MAX + 1, "req-%016" PRIx64, (uint64_t)base_now_ns());
}
