/* The plan files of engine/parallel/plans, embedded by the build; NUL-terminated. */
#ifndef TESSERA_ENGINE_PARALLEL_PLAN_BUILTIN_H
#define TESSERA_ENGINE_PARALLEL_PLAN_BUILTIN_H

extern const char plan_builtin_1d[];
extern const char plan_builtin_1d_sp[];
extern const char plan_builtin_2d[];
extern const char plan_builtin_2p5d[];
extern const char plan_builtin_3d[];
extern const char plan_builtin_3d_gathered[];

#endif
