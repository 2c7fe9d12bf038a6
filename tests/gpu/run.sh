#!/usr/bin/env bash
# shellcheck disable=SC2317 # functions are called through --inside
# What only a machine with an NVIDIA GPU can check, in the order in which faults hide each other.
# Each stage can be run alone and takes at most four minutes (a build nine). A check that outlasts
# its limit is killed with all that it started, and the next goes on; what no longer fits into its
# stage or into BUDGET seconds (1500) is skipped. $OUT/results.md has the table so far after every
# check and the figures in the end, $OUT/logs.txt what each of them said. Without a GPU the script
# says so and returns 77. Where commands may take ten minutes: BUDGET=570, and the stages in parts;
# forward, fp8, int4 and torch belong together.
#
#   tests/gpu/run.sh [STAGE...]
#
# build     program, module, tests and the libraries they need, into build/gpu/run: see below
# doctor    what the machine is
# loader    weights of a small checkpoint in the device's memory, row by row
# twins     every op of the device against kernels/ref, each in a process of its own
# goldens   logits of the small checkpoints against transformers, through the ranks' own code
# graphs    memory as planned, steps replayed as graphs and launched ahead; --deterministic
# serve     the server's greedy text on one GPU is that on the CPU
# nccl      two ranks on one GPU, and a 2d grid of four, through NCCL over sockets: function only,
#           never to be timed
# load      GiB/s of 4 GB of weights from the page cache into the device's memory
# forward   whole steps of an 8 B shape (Llama 3.1's, random bf16 weights): decodes of 1 and of 64
#           sequences with 1,024 tokens of context, a prompt of 8,192; shares of the device's limits
# fp8       the same with --quantization fp8, and what that changes in the demo model's words
# int4      the same with --quantization int4
# torch     the same in plain PyTorch with CUDA graphs, beside what the three before printed if they
#           are run together with it; PyTorch's model is first held against transformers'
# http      64 streams of the 8 B shape, front to back: TTFT, ITL, CPU of the front end
# decode    the 8 B shape through scheduler and links: with CUDA graphs and without
# step      microseconds of a rank's thread in each step of 32 layers
# kernels   rates of the kernels: the share of a copy's, and attention's of the fastest linear's
# trace     where the time of a step goes, kernel by kernel: 8 layers of the 8 B shape
# peers     two ranks on two GPUs, where there are as many; what symmetric memory is worth
# sanitize  the twins under compute-sanitizer; sanitize_attend: those of attention and elections
# races     of attention in shared memory, under compute-sanitizer
#
# A machine with a GPU often has neither our packages nor a network. "build" needs no GPU, but the
# toolkit, NCCL and the packages of deploy/packages.sh and libcmocka-dev; the folder build/gpu/run
# (50 MiB, 7 as a tar.xz; BUILD=folder: folder/run) can be copied to a Linux that is as new or
# newer, into the same place of a checkout, where all other stages take it as it is and need bash
# and Python only, NCCL and cuBLAS as PyTorch brings them. ARCH=90-real builds for Hopper alone.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
BUILD=${BUILD:-build/gpu}
OUT=${OUT:-$BUILD/out}
BUDGET=${BUDGET:-1500}
RUN=$BUILD/run
LOGS=$BUILD/logs
SELF=$PWD/tests/gpu/run.sh
MODEL=deploy/demo/model
PROGRAMS=(test_loader test_kernels test_linear_int test_linear_bf16 test_linear_out test_linear_in
    test_linear_range test_linear_fused test_device_rows test_experts test_attend test_rope_attend
    test_sample test_elect test_model test_device test_device_products test_device_recurrent
    test_device_latent test_deterministic bench_device bench_forward bench_step)
all=(doctor loader twins goldens graphs serve nccl load forward fp8 int4 torch http decode step
    kernels trace peers sanitize sanitize_attend races)
beside=(loader twins goldens sanitize sanitize_attend) # results, no timings: so that
JOBS=${JOBS:-6}                                        # many of their checks run at a time
running=                                               # the session of a check
stage_end=240                                          # in SECONDS

# ---- one check: a line of the table ----

# The processes of a session, whatever groups they made.
signal_session() {
    local stat fields session
    for stat in /proc/[0-9]*/stat; do
        read -r fields 2>/dev/null <"$stat" || continue
        read -r _ _ _ session _ <<<"${fields##*) }"
        [ "$session" != "$2" ] || kill -s "$1" "${fields%% *}" 2>/dev/null
    done
}

# check SECONDS NAME COMMAND...: its log is $LOGS/NAME.log. A session of its own, so that what it
# leaves behind can be found.
check() {
    local limit=$1 name=$2 begin=$SECONDS result=ok left pid status
    left=$(((stage_end < BUDGET ? stage_end : BUDGET) - begin))
    [ "$left" -gt 0 ] || left=0
    shift 2
    if [ "$left" -lt $((limit / 2)) ]; then
        tell "| $name | skipped: $left s are left | |"
        return
    fi
    [ "$limit" -le "$left" ] || limit=$left
    : >"$LOGS/$name.log"
    setsid "$BASH" "$SELF" --inside "$@" >>"$LOGS/$name.log" 2>&1 </dev/null &
    pid=$!
    running=$pid
    while kill -0 "$pid" 2>/dev/null && [ $((SECONDS - begin)) -lt "$limit" ]; do
        sleep 0.2
    done
    if kill -0 "$pid" 2>/dev/null; then
        result="FAILED: longer than $limit s"
        signal_session TERM "$pid"
        sleep 3
    fi
    signal_session KILL "$pid"
    wait "$pid" 2>/dev/null
    status=$?
    running=
    case $result-$status in
    ok-0) ;;
    ok-77) result="skipped: not on this machine" ;;
    ok-*) result="FAILED ($status)" ;;
    esac
    { # whole, whatever else ends now
        flock 9
        { printf '\n==== %s: %s\n' "$name" "$result" && cat "$LOGS/$name.log"; } >>"$OUT/logs.txt"
        tell "| $name | $result | $((SECONDS - begin)) s |"
        if [[ $result == FAILED* ]]; then
            tail -n 8 "$LOGS/$name.log" | cut -c1-300 | sed 's/^/    /'
        fi
    } 9>"$LOGS/lock"
}

# The same beside up to JOBS others.
check_beside() {
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do
        wait -n
    done
    (
        trap '[ -z "$running" ] || signal_session KILL "$running"; exit 143' TERM
        check "$@"
    ) &
}

tell() {
    printf '%s\n' "$1" | tee -a "$OUT/results.md"
}

# passed NAME: in this run.
passed() {
    grep -qF "| $1 | ok |" "$OUT/results.md"
}

# ---- what checks run ----

# Folders of NCCL (and of cuBLAS, to run) where only Python's packages brought them.
python_libraries() {
    python3 - "$@" 2>/dev/null <<'END'
import glob, os, sys
found = [f for p in sys.path for name in ("libnccl.so.2", *sys.argv[1:])
         for f in glob.glob(os.path.join(p, "nvidia", "*", "lib", name))]
print(":".join(sorted({os.path.dirname(f) for f in found})))
END
}

# What the other stages need, in one folder; of libraries all but those of the compiler, which every
# Linux has, and NVIDIA's.
pack() {
    rm -rf "$RUN"
    mkdir -p "$RUN/lib"
    cp "$BUILD/tessera" "$BUILD/libtessera_cuda.so" "${PROGRAMS[@]/#/$BUILD/tests/}" "$RUN/" ||
        return
    [ ! -e "$BUILD/libtrace.so" ] || cp "$BUILD/libtrace.so" "$RUN/"
    ldd "$RUN"/tessera "$RUN"/test_* "$RUN"/bench_* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
        sort -u | grep -vE '/lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)\.so' |
        xargs -r -I{} cp -L {} "$RUN/lib/"
}

build() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DTESSERA_CUDA=ON -DTESSERA_WERROR=ON
        -DTESSERA_TEST_ROOT=. "-DCMAKE_PREFIX_PATH=$(python_libraries | sed 's#/lib\(:\|$\)#;#g')")
    ! command -v ninja >/dev/null || options+=(-G Ninja)
    [ -z "${ARCH:-}" ] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$ARCH")
    cmake -S . -B "$BUILD" "${options[@]}" &&
        cmake --build "$BUILD" -j "$(nproc)" --target tessera tessera_cuda "${PROGRAMS[@]}" ||
        return
    cmake --build "$BUILD" --target trace || echo "no traces: there is no CUPTI of CUDA 13 or newer"
    pack
}

# one PROGRAM TEST [TOOL...]: a single test, which must have met the device. If one fails,
# compute-sanitizer may know why.
one() {
    local program=$1 name=$2 log status
    shift 2
    log=$LOGS/$program.$name.out
    "$@" "$RUN/$program" "$name" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    ! grep -q 'skipped:' "$log" || return 1
    if [ "$status" != 0 ]; then
        [ $# -gt 0 ] || timeout 25 compute-sanitizer "$RUN/$program" "$name" 2>&1 | head -n 60
        return 1
    fi
    ! grep -q '\[  SKIPPED \] 1 test' "$log" || return 77
    grep -q '\[  PASSED  \] 1 test' "$log"
}

# text_of TOKENS OPTION...: the demo model's greedy words with these options of the server's.
text_of() {
    "$RUN/tessera" complete "$MODEL" "Once upon a time" --max-tokens "$1" --temperature 0 -- \
        --dtype float32 "${@:2}"
}

same_text() {
    local want got
    want=$(text_of "$1" --device cpu) && got=$(text_of "$1" --device cuda "${@:2}") || return
    printf 'cpu:  %s\ncuda: %s\n' "$want" "$got"
    [ -n "$want" ] && [ "$want" = "$got" ]
}

# Llama 3.1 8B's shape; weights are hashed on the fly.
shape_8b() {
    mkdir -p "$LOGS/8b"
    cat >"$LOGS/8b/config.json" <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
 "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rms_norm_eps": 1e-05,
 "max_position_embeddings": 131072, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
 "tie_word_embeddings": false, "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": 128001}
END
}

# The rate at which a checkpoint comes from the page cache into the device's memory.
load_rate() {
    local model=$LOGS/4layers status
    shape_8b
    sed 's/\(hidden_layers": \)32/\14/' "$LOGS/8b/config.json" >"$model.json"
    rm -rf "$model"
    "$RUN/tessera" synth --config "$model.json" -o "$model" &&
        grep -q 'weights loaded' < <("$RUN/tessera" serve "$model" --device cuda --port 0 \
            --skip-tokenizer-init --max-model-len 4096 2>&1 | tee -a /dev/stderr)
    status=$?
    rm -rf "$model"
    return "$status"
}

# Every sequence has its own blocks, of 1,077 positions at most.
forward() {
    shape_8b
    "$RUN/bench_forward" "$LOGS/8b" --load-format=dummy --max-num-seqs=64 \
        --max-num-batched-tokens=8192 --max-model-len=8256 --kv-cache-memory=9G "$@"
}

torch_golden() {
    LD_LIBRARY_PATH=$LIBRARIES_OF_PYTHON \
        python3 tests/bench/bench_torch.py --check tests/golden/*_*/
}

torch() {
    local name beside=()
    for name in forward forward_fp8 forward_int4; do
        ! passed "$name" || beside+=("$LOGS/$name.log")
    done
    shape_8b
    LD_LIBRARY_PATH=$LIBRARIES_OF_PYTHON python3 tests/bench/bench_torch.py "$LOGS/8b" \
        --beside "${beside[@]}"
}

# The tokenizer is that of a small model of as many tokens.
http() {
    local model=$LOGS/8b_words
    shape_8b
    rm -rf "$model"
    sed 's/4096/64/; s/14336/64/; s/\(hidden_layers": \)32/\11/' "$LOGS/8b/config.json" \
        >"$model.json"
    "$RUN/tessera" synth --config "$model.json" -o "$model" || return
    rm "$model"/*.safetensors
    cp "$LOGS/8b/config.json" "$model/"
    "$RUN/tessera" bench "$model" --max-concurrency 64 --num-prompts 192 \
        --random-input-len 1024 --random-output-len 128 --ignore-eos -- \
        --device cuda --load-format dummy --max-num-seqs 64 --max-model-len 4096 \
        --max-num-batched-tokens 8192
}

# One request alone, then 64 at once.
decode() {
    shape_8b
    "$RUN/tessera" bench "$LOGS/8b" --latency --throughput --num-prompts 64 \
        --random-input-len 1024 --random-output-len 128 -- \
        --device cuda --load-format dummy --max-model-len 4096 \
        --max-num-batched-tokens 8192 "$@"
}

# As many layers; their width is nothing to the host.
step() {
    shape_8b
    mkdir -p "$LOGS/narrow"
    sed 's/4096/1024/; s/14336/3584/; s/\(attention_heads": \)32/\18/; s/\(value_heads": \)8/\12/' \
        "$LOGS/8b/config.json" >"$LOGS/narrow/config.json"
    "$RUN/bench_step" "$LOGS/narrow" --load-format=dummy --max-model-len=512 --kv-cache-memory=1G
}

# CUPTI is the toolkit's or, as cuBLAS, PyTorch's.
trace() {
    local model=$LOGS/8layers library
    library=$(realpath "$RUN/libtrace.so") && [ -e "$library" ] || return 77
    shape_8b
    mkdir -p "$model"
    sed 's/\(hidden_layers": \)32/\18/' "$LOGS/8b/config.json" >"$model/config.json"
    CUDA_INJECTION64_PATH=$library TRACE_FILE=$LOGS/trace.csv "$RUN/bench_forward" "$model" \
        --load-format=dummy --max-num-seqs=64 --max-num-batched-tokens=8192 \
        --max-model-len=8256 --kv-cache-memory=9G "$@" &&
        python3 tests/gpu/trace.py "$LOGS/trace.csv" --steps 3
}

peers() {
    [ "$(nvidia-smi -L | grep -c '^GPU')" -ge 2 ] || return 77
    same_text 48 -tp 2 --kv-cache-memory 64M
}

divergence() {
    python3 tests/bench/bench_quantization.py --build "$RUN" --prompts 12 --device cuda \
        --quantization "$1"
}

# ---- the stages ----

# each SECONDS PROGRAM [TOOL...]: a check for each of its tests.
each() {
    local limit=$1 program=$2 name
    shift 2
    while read -r name; do
        check_beside "$limit" "${1:+sanitize_}${program#test_}.${name#test_}" \
            one "$program" "$name" "$@"
    done < <(sed -n 's/^static void \(test_[a-z0-9_]*\)(void \*\*state.*/\1/p' "tests/$program.c")
}

stage() {
    local t
    case $1 in
    build) check 540 build build ;;
    doctor) check 60 doctor "$RUN/tessera" doctor "$MODEL" --device cuda ;;
    loader) check_beside 60 loader one test_loader test_load_device ;;
    load) check 90 load load_rate ;;
    twins)
        for t in test_kernels test_linear_int test_linear_bf16 test_linear_out test_linear_in \
            test_linear_range test_linear_fused test_device_rows test_experts test_attend \
            test_rope_attend test_device_recurrent test_device_latent test_sample test_elect; do
            each 60 "$t"
        done
        ;;
    goldens) check_beside 120 goldens one test_model test_goldens_device ;;
    graphs)
        JOBS=1 each 90 test_device
        JOBS=1 each 90 test_device_products
        wait
        check 90 deterministic one test_deterministic test_bits
        ;;
    serve) check 60 serve same_text 48 ;;
    nccl) # ranks take turns of milliseconds on the device, in every collective: few tokens
        check 90 nccl_2 same_text 16 -tp 2 --ranks-per-device 2 --kv-cache-memory 64M
        check 60 nccl_2_order same_text 16 -tp 2 --ranks-per-device 2 --kv-cache-memory 64M \
            --deterministic
        check 180 nccl_4_2d same_text 8 -tp 4 --parallel-mode 2d --ranks-per-device 4 \
            --kv-cache-memory 64M
        ;;
    fp8)
        check 60 divergence_fp8 divergence fp8
        check 90 forward_fp8 forward --quantization=fp8
        ;;
    int4)
        check 60 divergence_int4 divergence int4
        check 90 forward_int4 forward --quantization=int4
        ;;
    forward) check 90 forward forward ;;
    torch)
        check 60 torch_golden torch_golden
        check 120 torch torch
        ;;
    http) check 120 http http ;;
    decode)
        check 60 decode_graphs decode
        check 60 decode_eager decode --enforce-eager
        ;;
    step) check 60 step step ;;
    kernels) check 90 kernels "$RUN/bench_device" ;;
    trace)
        check 60 trace trace
        check 60 trace_fp8 trace --quantization=fp8
        ;;
    peers) check 120 peers peers ;;
    sanitize)
        for t in test_kernels test_linear_fused; do
            each 60 "$t" compute-sanitizer --error-exitcode 9
        done
        ;;
    sanitize_attend)
        for t in test_attend test_rope_attend test_elect; do
            each 60 "$t" compute-sanitizer --error-exitcode 9
        done
        ;;
    races)
        check 240 races one test_attend test_attend compute-sanitizer --tool racecheck \
            --error-exitcode 9
        for t in test_rope_attend test_linear_fused; do
            each 90 "$t" compute-sanitizer --tool racecheck --error-exitcode 9
        done
        ;;
    esac
}

# Figures of a check that passed.
show() {
    if passed "$1"; then
        printf '\n%s\n\n' "$2"
        grep -E "$3" "$LOGS/$1.log"
    fi
}

figures() {
    show doctor "The machine:" .
    show load "From a file in the page cache, 4 layers of the 8 B shape:" 'weights loaded'
    if passed torch; then
        show torch "Steps of the 8 B shape, beside PyTorch:" '^(\||limits|$)'
    else
        show forward "Steps of the 8 B shape:" '^(\||limits|$)'
        show forward_fp8 "The same in fp8:" '^(\||limits|$)'
        show forward_int4 "The same in int4:" '^(\||limits|$)'
    fi
    show divergence_fp8 "fp8 against bf16, the demo model:" 'mean KL'
    show divergence_int4 "int4 against bf16, the demo model:" 'mean KL'
    show http "64 streams of the 8 B shape over HTTP, prompts of 1,024:" \
        '^(requests|throughput|client|server|ms|TTFT|ITL)'
    show decode_graphs "The 8 B shape without HTTP, CUDA graphs:" .
    show decode_eager "The same without graphs:" .
    show step "The host's work in a step:" '^\|'
    show peers "Between GPUs:" 'all-reduce'
    show kernels "Kernels:" '^\|'
    show trace "Where the time goes, bf16:" '^(\||[0-9]+ steps|$)'
    show trace_fp8 "The same in fp8:" '^(\||[0-9]+ steps|$)'
}

if [ "${1:-}" = --inside ]; then
    "${@:2}"
    exit
fi
stages=("$@")
[ $# -gt 0 ] || stages=("${all[@]}")
# a folder that was copied here has no cache
[ $# -gt 0 ] || { [ -x "$RUN/tessera" ] && [ ! -e "$BUILD/CMakeCache.txt" ]; } ||
    stages=(build "${all[@]}")
for name in "${stages[@]}"; do
    [[ " build ${all[*]} " == *" $name "* ]] || {
        sed -n '3,/^set/s/^# \{0,1\}//p' "$SELF"
        exit 2
    }
done
if [ "${stages[*]}" != build ] && [ ! -e /dev/nvidia0 ] &&
    ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "skipped: no NVIDIA GPU here"
    exit 77
fi
export BUILD OUT PATH=$PATH:/usr/local/cuda/bin
export LIBRARIES_OF_PYTHON=${LD_LIBRARY_PATH:-} # without ours
LD_LIBRARY_PATH="/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"
LD_LIBRARY_PATH="$RUN/lib:$(python_libraries 'libcublasLt.so.*' 'libcupti.so.*'):$LD_LIBRARY_PATH"
export LD_LIBRARY_PATH
trap '[ -z "$running" ] || signal_session KILL "$running"; kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 143' HUP INT TERM
mkdir -p "$OUT" "$LOGS"
: >"$OUT/logs.txt"
# what is built already, by ctest or by hand
[ "${stages[0]}" = build ] || [ ! -x "$BUILD/tessera" ] || pack || exit
printf '| check | result | time |\n| --- | --- | --- |\n' | tee "$OUT/results.md"
for name in "${stages[@]}"; do
    [[ " ${beside[*]} " == *" $name "* ]] || wait
    stage_end=$((SECONDS + $([ "$name" = build ] && echo 540 || echo 240)))
    stage "$name"
done
wait
figures | tee -a "$OUT/results.md"
! grep -q '| FAILED' "$OUT/results.md"
