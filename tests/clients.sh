#!/usr/bin/env bash
# Clients that are too large to install for every run of the tests: lm-evaluation-harness against
# the server and against Hugging Face transformers, number by number; greedy texts of every layout
# against transformers; collectives of 1d against PyTorch's DTensor. Prints markdown tables.
#
#   tests/clients.sh [--ranks N]     TESSERA=path/to/tessera to test another build
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=build/clients-venv
if ! cmp -s tests/clients/requirements.txt "$VENV/installed.txt"; then
    printf '==> %s: some gigabytes of Python packages\n' "$VENV"
    rm -rf "$VENV"
    python3 -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
    cp tests/clients/requirements.txt "$VENV/installed.txt"
fi
export TESSERA="${TESSERA:-$PWD/build/dev/tessera}"
failed=0
for script in lm_eval_compare dtensor_twin; do
    "$VENV/bin/python" "tests/clients/$script.py" "$@" || failed=1
    printf '\n'
done
"$VENV/bin/python" tests/clients/greedy_compare.py || failed=1
exit "$failed"
