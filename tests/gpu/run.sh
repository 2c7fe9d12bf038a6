#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can check. Each stage can be run alone, has at most four
# minutes, and is a line of the table at the end; without a GPU the script says so and returns 77.
#
#   tests/gpu/run.sh [build] [twins] [goldens] [serve] [ranks] [sanitize]
#
# build     program, module and tests into build/gpu (BUILD=folder: those of another build)
# twins     every op of the device against kernels/ref
# goldens   logits of the small checkpoints against transformers, through the ranks' own code
# serve     the server's greedy text on one GPU is that on the CPU
# ranks     two ranks on one GPU, through NCCL over sockets: function only, never to be timed
# sanitize  the twins under compute-sanitizer
# shellcheck disable=SC2317 # functions that "stage" calls
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
BUILD=${BUILD:-build/gpu}
LIMIT=240
MODEL=deploy/demo/model
table=()
failed=0

if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "skipped: no NVIDIA GPU here"
    exit 77
fi

stage() {
    local name=$1 begin=$SECONDS result
    shift
    mkdir -p "$BUILD/log"
    if timeout -k 5 "$LIMIT" bash -c "$functions"'; "$@"' - "$@" >"$BUILD/log/$name" 2>&1; then
        result=ok
    else
        result="FAILED ($?)"
        failed=1
        tail -n 15 "$BUILD/log/$name"
    fi
    table+=("$(printf '%-22s %-13s %4d s' "$name" "$result" $((SECONDS - begin)))")
}

build() {
    cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_CUDA=ON \
        -DTESSERA_WERROR=ON -DCMAKE_CUDA_ARCHITECTURES=native &&
        ninja -C "$BUILD" tessera tessera_cuda test_kernels test_sample test_elect test_model
}

# Tests take the module beside them: in a folder of their own that is the real one.
on_device() {
    local program=$1
    shift
    mkdir -p "$BUILD/device"
    cp "$BUILD/libtessera_cuda.so" "$BUILD/tests/$program" "$BUILD/device/"
    "$@" "$BUILD/device/$program" 2>&1 | tee "$BUILD/log/$program.out"
    [ "${PIPESTATUS[0]}" = 0 ] && ! grep -q "cuda: skipped" "$BUILD/log/$program.out"
}

# Greedy text of the demo model, by the server with these options.
text_of() {
    local port=$((20000 + RANDOM % 20000)) server text status=1
    "$BUILD/tessera" serve "$MODEL" --host 127.0.0.1 --port "$port" "$@" &
    server=$!
    for _ in $(seq 600); do
        curl -fs "http://127.0.0.1:$port/readyz" >/dev/null && break
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
    text=$(curl -fs "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' \
        -d '{"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0}' |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["text"])') &&
        status=0
    kill "$server"
    wait "$server"
    printf '%s\n' "$text" >"$BUILD/log/text"
    return "$status"
}

same_text() {
    local want
    text_of --dtype float32 --device cpu && want=$(cat "$BUILD/log/text") &&
        text_of --dtype float32 --device cuda "$@" && cat "$BUILD/log/text" &&
        [ -n "$want" ] && [ "$want" = "$(cat "$BUILD/log/text")" ]
}

functions="BUILD=$BUILD MODEL=$MODEL; set -uo pipefail
$(declare -f build on_device text_of same_text)"
stages=("$@")
[ $# -gt 0 ] || stages=(build twins goldens serve ranks)
for name in "${stages[@]}"; do
    case $name in
    build) stage build build ;;
    twins) for t in test_kernels test_sample test_elect; do stage "$t" on_device "$t"; done ;;
    goldens) stage goldens on_device test_model ;;
    serve) stage serve same_text ;;
    ranks) stage ranks same_text -tp 2 --ranks-per-device 2 --kv-cache-memory 64M ;;
    sanitize)
        for t in test_kernels test_elect; do
            stage "sanitize_$t" on_device "$t" compute-sanitizer --error-exitcode 9
        done
        ;;
    *)
        sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 2
        ;;
    esac
done
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
printf '%s\n' "${table[@]}"
exit $failed
