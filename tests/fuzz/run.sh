#!/usr/bin/env bash
# Builds the fuzz targets with clang's address and undefined behaviour sanitizers, and runs each for
# a while from tests/corpus. What it finds stays in build/fuzz: inputs that reach new code in
# corpus/TARGET, inputs that fail as TARGET-crash-... What failed is told at the end, and the last
# line counts targets.
#
#   tests/fuzz/run.sh [SECONDS [TARGET...]]      e.g. tests/fuzz/run.sh 600 spm config
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BUILD=${FUZZ_BUILD:-build/fuzz}
MEMORY_MB=3000
case ${1:-20} in
*[!0-9]*)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
seconds=${1:-20}
targets=("${@:2}")
good=0 bad=0

if [ ${#targets[@]} = 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=${source##*/fuzz_}
        targets+=("${name%.c}")
    done
fi

cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTESSERA_WERROR=ON \
    -DBUILD_TESTING=ON -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
    -DSANITIZE=address,undefined -DFUZZ=ON
cmake --build "$BUILD" -j "$(nproc)" --target "${targets[@]/#/fuzz_}"

# fuzz NAME: leaves the file NAME.passed when nothing was found.
fuzz() {
    local inputs=("$BUILD/corpus/$1") # what it finds goes there, not to the tree
    mkdir -p "${inputs[0]}"
    if [ -d "tests/corpus/$1" ]; then
        inputs+=("tests/corpus/$1")
    fi
    rm -f "$BUILD/$1.passed"
    "$BUILD/tests/fuzz_$1" -max_total_time="$seconds" -timeout=25 -rss_limit_mb="$MEMORY_MB" \
        -artifact_prefix="$BUILD/$1-" -print_final_stats=1 "${inputs[@]}" >"$BUILD/$1.log" 2>&1 &&
        touch "$BUILD/$1.passed"
    printf '==> %s\n' "$1"
    tail -n 40 "$BUILD/$1.log"
}

for i in "${!targets[@]}"; do
    if [ "$i" -ge "$(nproc)" ]; then
        wait -n || true
    fi
    fuzz "${targets[$i]}" &
done
wait
for name in "${targets[@]}"; do
    if [ -e "$BUILD/$name.passed" ]; then
        good=$((good + 1))
    else
        bad=$((bad + 1))
        printf -- '--- failed: %s\n' "$name"
        grep -B 2 -A 30 -m 1 -E 'internal error|ERROR|runtime error' "$BUILD/$name.log" || true
        for input in "$BUILD/$name"-*; do
            [ ! -f "$input" ] || od -A d -t x1z "$input" | head -n 40
        done
    fi
done
printf '%s passed, %s failed\n' "$good" "$bad"
[ "$bad" = 0 ]
