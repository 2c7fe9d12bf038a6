#!/usr/bin/env bash
# What the HTTP side alone can do: requests per second by wrk on kept connections, for an answer
# (/v1/models) and for a refusal (401). Client and server share the machine.
#
#   tests/bench/bench_http.sh [MODEL]      TESSERA=path/to/tessera, SECONDS_EACH=10, CONNECTIONS=32
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=${1:-deploy/demo/model}
key=sk-bench-0123456789
scratch=$(mktemp -d)
command -v wrk >/dev/null || { printf 'wrk is not installed\n' >&2 && exit 2; }

finish() {
    [ -z "${server:-}" ] || { kill "$server" && wait "$server"; } || true
    rm -r "$scratch"
}
trap finish EXIT

(umask 077 && printf '%s\n' "$key" >"$scratch/keys")
"${TESSERA:-build/dev/tessera}" serve "$model" --port 0 --threads-per-rank 1 \
    --kv-cache-memory 24M --api-key-file "$scratch/keys" >"$scratch/log" 2>&1 &
server=$!
for _ in $(seq 300); do
    url=$(grep -o 'listening on http://[^ ]*' "$scratch/log" | cut -d' ' -f3) && break
    kill -0 "$server" 2>/dev/null || { cat "$scratch/log" && exit 1; }
    sleep 0.1
done

# measure NAME HEADER
measure() {
    local rate
    rate=$(wrk -t1 -c"${CONNECTIONS:-32}" -d"${SECONDS_EACH:-10}" -H "$2" "$url/v1/models" |
        awk '/^Requests\/sec/ { print $2 }')
    printf '| %s | %.0f |\n' "$1" "$rate"
}

printf '| GET /v1/models, %s connections, %s cores | requests/s |\n| --- | --- |\n' \
    "${CONNECTIONS:-32}" "$(nproc)"
measure "with a key (200)" "Authorization: Bearer $key"
measure "without (401)" "X-Nothing: here"
