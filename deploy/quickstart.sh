#!/usr/bin/env bash
# From a fresh checkout to a streamed completion: packages, release build, demo model on two ranks.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/packages.sh
. deploy/packages.sh

MODEL=deploy/demo/model
PROMPT="Once upon a time"
BINARY=build/release/tessera
SERVER_LOG=build/quickstart-server.log
keep=false
server=
started=$(date +%s%N)

usage() {
    cat <<USAGE
usage: deploy/quickstart.sh [--keep]

Installs the packages a build needs (Debian >= 12, Ubuntu >= 22.04), builds Tessera into
build/release, serves the demo model with two ranks and streams one completion.

  --keep   leave the server running in the background
  --help   this text
USAGE
}

# Seconds since a moment in nanoseconds, with one decimal.
since() {
    local tenths=$((($(date +%s%N) - $1) / 100000000))
    echo "$((tenths / 10)).$((tenths % 10)) s"
}

fail() { # fail LOG MESSAGE
    printf '\n%s\n' "$2" >&2
    if [ -s "$1" ]; then
        printf 'The last lines of %s:\n' "$1" >&2
        tail -n 20 "$1" >&2
    fi
    exit 1
}

# step NAME LOG COMMAND...: runs with its output in LOG, the build's [done/all] shown on a terminal.
step() {
    local name=$1 log=$2 begin pid count=
    shift 2
    begin=$(date +%s%N)
    printf '==> %s\n' "$name"
    "$@" >"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if [ -t 1 ]; then
            count=$(grep -o '^\[[0-9]*/[0-9]*\]' "$log" | tail -n 1 || true)
            printf '\r    %s %s ' "$(since "$begin")" "$count"
        fi
        sleep 0.2
    done
    if [ -t 1 ]; then
        printf '\r\033[K'
    fi
    wait "$pid" || fail "$log" "$name failed."
    printf '    done in %s (%s)\n' "$(since "$begin")" "$log"
}

stop_server() {
    if [ -n "$server" ] && kill "$server" 2>/dev/null; then
        wait "$server" 2>/dev/null || true
    fi
    server=
}

install_packages() {
    local begin status=0 log=build/quickstart-packages.log
    begin=$(date +%s%N)
    printf '==> Packages\n'
    : >"$log"
    packages_install "$log" "${PACKAGES_BUILD[@]}" || status=$?
    case $status in
    0) printf '    there in %s\n' "$(since "$begin")" ;;
    2) exit 2 ;;
    *) fail "$log" "Installing packages failed." ;;
    esac
}

build() {
    step "Configuring" build/quickstart-configure.log \
        cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF
    step "Building (a minute or two the first time)" build/quickstart-build.log \
        cmake --build build/release --target tessera
}

# Sets server (its process id) and url.
serve() {
    local begin port=8000 run=()
    begin=$(date +%s%N)
    if (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; then
        port=0 # taken: any free one
    fi
    if $keep; then
        run=(nohup)
    fi
    printf '==> Serving %s with two ranks\n' "$MODEL"
    "${run[@]}" "$BINARY" serve "$MODEL" -tp 2 --port "$port" </dev/null >"$SERVER_LOG" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        url=$(grep -o 'http://127\.0\.0\.1:[0-9]*' "$SERVER_LOG" | head -n 1 || true)
        if [ -n "$url" ] && curl -sf -o /dev/null "$url/health"; then
            printf '    ready on %s in %s\n' "$url" "$(since "$begin")"
            return
        fi
        kill -0 "$server" 2>/dev/null || fail "$SERVER_LOG" "The server stopped."
        sleep 0.1
    done
    fail "$SERVER_LOG" "The server was not ready within a minute."
}

# Prints the text of each server-sent event as it comes. %b undoes JSON's escapes but \"; the
# surrogate pairs it cannot undo do not occur, because the server writes UTF-8 as it is.
print_stream() {
    local line text='"text": ?"(([^"\\]|\\.)*)"' quote='\"' pieces=0
    while IFS= read -r line; do
        case $line in
        'data: [DONE]'*)
            printf '\n'
            [ "$pieces" -gt 0 ]
            return
            ;;
        esac
        if [[ $line =~ $text ]]; then
            printf '%b' "${BASH_REMATCH[1]//"$quote"/\\x22}"
            pieces=$((pieces + 1))
        fi
    done
    printf '\n'
    return 1 # the stream broke off
}

complete() {
    local begin
    begin=$(date +%s%N)
    printf '==> POST %s/v1/completions\n\n%s' "$url" "$PROMPT"
    curl -sS -N --max-time 120 "$url/v1/completions" -H 'Content-Type: application/json' -d "{
        \"prompt\": \"$PROMPT\", \"max_tokens\": 120, \"temperature\": 0.7, \"seed\": 1,
        \"stream\": true}" | print_stream ||
        fail "$SERVER_LOG" "The completion did not end as it should."
    printf '\n    streamed in %s\n' "$(since "$begin")"
}

finish() {
    if $keep; then
        printf '==> The server keeps running (process %s, log %s). Try:\n\n' "$server" "$SERVER_LOG"
        printf "curl -N %s/v1/completions -H 'Content-Type: application/json' " "$url"
        printf -- "-d '{\"prompt\": \"%s\", \"max_tokens\": 60, \"stream\": true}'\n\n" "$PROMPT"
        printf 'Stop it with: kill %s\n' "$server"
        server=
    else
        local begin status=0
        begin=$(date +%s%N)
        printf '==> Stopping\n'
        kill "$server"
        wait "$server" || status=$?
        server=
        [ "$status" = 0 ] || fail "$SERVER_LOG" "The server stopped with exit code $status."
        printf '    clean in %s\n' "$(since "$begin")"
    fi
}

for argument in "$@"; do
    case $argument in
    --keep) keep=true ;;
    --help | -h)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
done

mkdir -p build
trap stop_server EXIT
trap 'exit 130' INT TERM
install_packages
build
serve
complete
finish
printf 'All in %s.\n' "$(since "$started")"
