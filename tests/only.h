/* One test of a program, named by its first argument (cmocka's * and ? are known): tests/gpu/run.sh
 * gives each a process of its own, for a device that one has broken stays so until that ends. */
#ifndef TESSERA_TESTS_ONLY_H
#define TESSERA_TESTS_ONLY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline void only(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
}

#endif
