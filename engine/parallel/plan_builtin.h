/* The plan files of engine/parallel/plans, embedded by the build. */
#ifndef TESSERA_ENGINE_PARALLEL_PLAN_BUILTIN_H
#define TESSERA_ENGINE_PARALLEL_PLAN_BUILTIN_H

#include <stddef.h>

extern const char plan_builtin_1d[];
extern const size_t plan_builtin_1d_size;
extern const char plan_builtin_1d_sp[];
extern const size_t plan_builtin_1d_sp_size;

#endif
