#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can check, the most telling first. Each stage can be run
# alone and has a time limit; what no longer fits into BUDGET seconds (1500) is skipped. The results
# are markdown: on the terminal at the end, and in $OUT/results.md with each stage's log. Without a
# GPU the script says so and returns 77.
#
#   tests/gpu/run.sh [STAGE...]
#
# build     program, module and tests into build/gpu (BUILD=folder: those of another build)
# doctor    what the machine is
# twins     every op of the device against kernels/ref
# goldens   logits of the small checkpoints against transformers, through the ranks' own code
# device    memory as planned, steps replayed as graphs and launched ahead
# serve     the server's greedy text on one GPU is that on the CPU
# decode    tokens/s of an 8 B shape with random weights, with CUDA graphs and without
# fp8       the same with --quantization fp8, and what that changes in the demo model's words
# step      microseconds of a rank's thread in each step of 32 layers
# kernels   rates of the kernels: the share of a copy's, and attention's of the fastest linear's
# ranks     two ranks on one GPU, and a 2d grid of four, through NCCL over sockets: function only,
#           never to be timed
# peers     two ranks on two GPUs, where there are as many; what symmetric memory is worth
# sanitize  the twins under compute-sanitizer, and races of attention in shared memory
# shellcheck disable=SC2317 # functions that "stage" calls
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
BUILD=${BUILD:-build/gpu}
OUT=${OUT:-$BUILD/out}
BUDGET=${BUDGET:-1500}
MODEL=deploy/demo/model
table=()
failed=0

if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "skipped: no NVIDIA GPU here"
    exit 77
fi

# stage SECONDS NAME COMMAND...: one row of the table; its log is $OUT/NAME.log.
stage() {
    local limit=$1 name=$2 begin=$SECONDS result
    shift 2
    if [ $((BUDGET - SECONDS)) -lt $((limit / 2)) ]; then
        table+=("| $name | skipped: $((BUDGET - SECONDS)) s are left | |")
        return
    fi
    if timeout -k 5 "$limit" bash -c "$functions"'; "$@"' - "$@" >"$OUT/$name.log" 2>&1; then
        result=ok
    else
        result="FAILED ($?)"
        failed=1
        tail -n 15 "$OUT/$name.log"
    fi
    table+=("| $name | $result | $((SECONDS - begin)) s |")
}

build() {
    cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_CUDA=ON \
        -DTESSERA_WERROR=ON -DCMAKE_CUDA_ARCHITECTURES=native &&
        ninja -C "$BUILD" tessera tessera_cuda test_kernels test_attend test_sample test_elect \
            test_model test_device bench_device bench_step
}

# Tests take the module beside them: in a folder of their own that is the real one.
on_device() {
    local program=$1
    shift
    mkdir -p "$BUILD/device"
    cp "$BUILD/libtessera_cuda.so" "$BUILD/tests/$program" "$BUILD/device/"
    "$@" "$BUILD/device/$program" 2>&1 | tee "$OUT/$program.out"
    [ "${PIPESTATUS[0]}" = 0 ] && ! grep -q "cuda: skipped" "$OUT/$program.out"
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
    printf '%s\n' "$text" >"$OUT/text"
    return "$status"
}

same_text() {
    local want
    text_of --dtype float32 --device cpu && want=$(cat "$OUT/text") &&
        text_of --dtype float32 --device cuda "$@" && cat "$OUT/text" &&
        [ -n "$want" ] && [ "$want" = "$(cat "$OUT/text")" ]
}

# Llama 3.1 8B's shape; weights are hashed on the fly.
shape_8b() {
    mkdir -p "$OUT/8b"
    cat >"$OUT/8b/config.json" <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
 "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rms_norm_eps": 1e-05,
 "max_position_embeddings": 131072, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
 "tie_word_embeddings": false, "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": 128001}
END
}

# One request alone, then 64 at once.
decode() {
    shape_8b
    "$BUILD/tessera" bench "$OUT/8b" --latency --throughput --num-prompts 64 \
        --random-input-len 1024 --random-output-len 128 -- \
        --device cuda --load-format dummy --max-model-len 4096 \
        --max-num-batched-tokens 8192 "${@:2}"
}

# As many layers; their width is nothing to the host.
step() {
    shape_8b
    mkdir -p "$OUT/narrow" "$BUILD/device"
    sed 's/4096/1024/; s/14336/3584/; s/\(attention_heads": \)32/\18/; s/\(value_heads": \)8/\12/' \
        "$OUT/8b/config.json" >"$OUT/narrow/config.json"
    cp "$BUILD/libtessera_cuda.so" "$BUILD/tests/bench_step" "$BUILD/device/"
    "$BUILD/device/bench_step" "$OUT/narrow" --load-format=dummy --max-model-len=512 \
        --kv-cache-memory=1G
}

peers() {
    if [ "$(nvidia-smi -L | grep -c GPU)" -lt 2 ]; then
        echo "all-reduce: skipped, one GPU is here"
        return
    fi
    same_text -tp 2 --kv-cache-memory 64M
}

divergence() {
    python3 tests/bench/bench_fp8.py --build "$BUILD" --prompts 12 --device cuda
}

functions="BUILD=$BUILD OUT=$OUT MODEL=$MODEL; set -uo pipefail
$(declare -f build on_device text_of same_text shape_8b decode step peers divergence)"
all=(build doctor twins goldens device serve decode step fp8 kernels ranks peers sanitize)
stages=("$@")
[ $# -gt 0 ] || stages=("${all[@]}")
mkdir -p "$OUT"
for name in "${stages[@]}"; do
    case $name in
    build) stage 400 build build ;;
    doctor) stage 60 doctor "$BUILD/tessera" doctor "$MODEL" --device cuda ;;
    twins)
        for t in test_kernels test_attend test_sample test_elect; do
            stage 120 "$t" on_device "$t"
        done
        ;;
    goldens) stage 180 goldens on_device test_model ;;
    device) stage 120 device on_device test_device ;;
    serve) stage 120 serve same_text ;;
    decode)
        stage 200 decode_graphs decode graphs
        stage 200 decode_eager decode eager --enforce-eager
        ;;
    fp8)
        stage 200 decode_fp8 decode fp8 --quantization fp8
        stage 60 divergence divergence
        ;;
    step) stage 180 step step ;;
    kernels) stage 180 kernels on_device bench_device ;;
    ranks)
        stage 120 ranks_2 same_text -tp 2 --ranks-per-device 2 --kv-cache-memory 64M
        stage 120 ranks_4_2d same_text -tp 4 --parallel-mode 2d --ranks-per-device 4 \
            --kv-cache-memory 64M
        ;;
    peers) stage 120 peers peers ;;
    sanitize)
        for t in test_kernels test_attend test_elect; do
            stage 240 "sanitize_$t" on_device "$t" compute-sanitizer --error-exitcode 9
        done
        stage 240 races_test_attend on_device test_attend compute-sanitizer --tool racecheck \
            --error-exitcode 9
        ;;
    *)
        sed -n '2,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 2
        ;;
    esac
done

# The log of a stage, when there is one.
show() {
    if [ -s "$OUT/$1.log" ]; then
        printf '\n%s\n\n' "$2"
        grep -E "$3" "$OUT/$1.log"
    fi
}
{
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    printf '\n| stage | result | time |\n| --- | --- | --- |\n'
    printf '%s\n' "${table[@]}"
    show decode_graphs "8 B shape, bf16, random weights, CUDA graphs:" .
    show decode_eager "The same without graphs:" .
    show decode_fp8 "The same in fp8, with graphs:" .
    show divergence "fp8 against bf16, the demo model:" .
    show step "The host's work in a step:" '^\|'
    show peers "Between GPUs:" 'all-reduce'
    show kernels "Kernels:" '^\|'
} | tee "$OUT/results.md"
exit $failed
