#!/bin/sh
# Records a small run of every experiment: its raw samples, what isochrome concludes from them, and its exit status.
# The tests of crates/lab/tests/corpus.rs draw the same conclusions again.
#
#     scripts/corpus.sh target/release/isochrome crates/lab/tests/corpus
set -u
isochrome=$(realpath "$1")
cd "$2" || exit 1

record() {
    name=$1
    shift
    "$isochrome" "$@" --json --raw "$name.csv" > "$name.json"
    echo $? > "$name.status"
}

record filter lab filter --taps 4096 --blocks 12 --jobs 16
record fft lab fft --points 2048 --blocks 8 --jobs 6
record matmul lab matmul --blocks 6 --jobs 4
record crpd_data lab crpd --step 15 --blocks 8 --jobs 4
record crpd_code lab crpd --kind code --step 25 --blocks 6 --jobs 4
record switch lab switch --blocks 10 --jobs 5
record net lab net --path memory --sizes 64,1500,8192 --blocks 15 --packets 4
record interference lab interference --blocks 6 --by colors
record flood lab flood --verify --blocks 6 --samples 2
record workload lab workload --miss-ratio 0.33 --blocks 10
"$isochrome" lab conflicts --buffers 12 --rounds 30 --json > conflicts.json
echo $? > conflicts.status
