#!/usr/bin/env bash
# What 64-bit ARM makes of it, on any other machine: the program and its unit tests, built by
# Debian's cross compiler and run by QEMU, in which ARM's variants of the kernels have to say the
# same as plain C, bit for bit. Nothing is learnt of speed. Libraries for ARM come from the
# system's package mirror and are unpacked into build/arm64/root, not installed. Returns 77 where
# they cannot be had, as from Ubuntu's mirrors for x86. The last line counts tests. (On ARM itself:
# tests/run.sh.)
#
#   tests/arm64/run.sh [TEST...]      e.g. tests/arm64/run.sh test_kernels test_attend
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=deploy/packages.sh
. deploy/packages.sh

BUILD=build/arm64
ROOT=$BUILD/root
tests=("$@")
if [ ${#tests[@]} = 0 ]; then # of what differs between processors; QEMU takes long for all
    tests=(test_kernels test_elect test_linear_bf16 test_linear_int test_linear_range test_intq
        test_delta_rule test_fp8 test_mxfp4 test_packed test_comm test_jinja)
fi

# unpack PACKAGE...: these and all that they want, for ARM, with lists of its own.
unpack() {
    local state=$BUILD/apt archive
    local options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64
        -o APT::Install-Recommends=0 -o APT::Sandbox::User=root -o Debug::NoLocking=1
        -o Dir::State="$PWD/$state" -o Dir::State::lists="$PWD/$state/lists"
        -o Dir::State::status="$PWD/$state/status" -o Dir::Cache="$PWD/$state/cache"
        -o Acquire::Retries=5 -o Acquire::http::Timeout=60)
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    : >"$state/status"
    apt-get "${options[@]}" update &&
        apt-get "${options[@]}" install -y --download-only "$@" || return
    rm -rf "$ROOT"
    for archive in "$state"/cache/archives/*.deb; do
        dpkg -x "$archive" "$ROOT" || return
    done
    [ -e "$ROOT/lib" ] || ln -s usr/lib "$ROOT/lib" # of another package where /lib is a link
    rm -rf "$state"
    echo "$*" >"$ROOT/unpacked"
}

# Compiler, emulator and libraries.
prepare() {
    local package libraries=(libcmocka-dev)
    packages_install "$BUILD/packages.log" "${PACKAGES_BUILD[@]}" gcc-aarch64-linux-gnu \
        g++-aarch64-linux-gnu qemu-user || return
    for package in "${PACKAGES_BUILD[@]}"; do
        case $package in lib*-dev | nettle-dev) libraries+=("$package") ;; esac
    done
    libraries+=("libstdc++-$(aarch64-linux-gnu-gcc -dumpversion)-dev")
    [ "$(cat "$ROOT/unpacked" 2>/dev/null)" = "${libraries[*]}" ] ||
        unpack "${libraries[@]}" >>"$BUILD/packages.log" 2>&1
}

mkdir -p "$BUILD"
: >"$BUILD/packages.log"
if ! prepare; then
    tail -n 5 "$BUILD/packages.log"
    echo "no cross compiler, emulator or libraries for ARM ($BUILD/packages.log)"
    exit 77
fi
cmake -S . -B "$BUILD" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/tests/arm64/toolchain.cmake" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTESSERA_WERROR=ON -DBUILD_TESTING=ON
cmake --build "$BUILD" --target tessera "${tests[@]}"
status=0
ctest --test-dir "$BUILD" --output-on-failure --no-tests=error -j "$(nproc)" \
    -R "^($(IFS='|' && echo "${tests[*]}"))\$" | tee "$BUILD/ctest.log" || status=$?
sed -n 's/.*, \([0-9]*\) tests* failed out of \([0-9]*\).*/\2 \1/p' "$BUILD/ctest.log" |
    { read -r total bad && printf '%s passed, %s failed\n' "$((total - bad))" "$bad"; }
exit "$status"
