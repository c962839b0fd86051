#!/usr/bin/env bash
# What each part of the quantizer buys: converts a checkpoint once per row, judges every store on
# text that calibration never saw, and prints a Markdown table of the mean divergence by level.
#
#   scripts/ablation.sh HF_DIR [TEXT [TOKENS [CALIBRATION_TOKENS]]]
#
# NESTLING names the program (default: target/release/nestling), WORK a directory for the stores,
# which are removed one by one.
set -euo pipefail

checkpoint=${1:?usage: scripts/ablation.sh HF_DIR [TEXT [TOKENS [CALIBRATION_TOKENS]]]}
here=$(cd "$(dirname "$0")/.." && pwd)
text=${2:-$here/data/validation.txt}
judged=${3:-24576}
tokens=${4:-102400}
nestling=${NESTLING:-$here/target/release/nestling}
work=${WORK:-$(mktemp -d)}

row() {
    local name=$1 store=$work/ablation.nest
    shift
    "$nestling" -q convert "$checkpoint" -o "$store" --force --calibration-tokens "$tokens" "$@" >&2
    "$nestling" -q perplexity -m "$store" --reference "$checkpoint" --file "$text" \
        --tokens "$judged" --json | python3 -c "$cells" "$name"
    rm -f "$store"
}

cells='
import json, sys
rows = {row["level"]: row for row in json.load(sys.stdin)["rows"]}
levels = ["%.5f" % rows[level]["kl"]["mean"] for level in (2, 3, 4, 6, 8)]
shipped = "%.5f" % rows[4]["shipped"]["kl"]["mean"]
print("| " + " | ".join([sys.argv[1], *levels, shipped]) + " |", flush=True)'

base=(--order source --rotation off --tables 1)
echo "| quantizer | 2 | 3 | 4 | 6 | 8 | 4 as shipped |"
echo "|---|---:|---:|---:|---:|---:|---:|"
row "rounding alone" "${base[@]}" --calibration none
row "+ 16 tables" --calibration none --order source --rotation off --tables 16
row "+ rows by shape" --calibration none --order shape --rotation off --tables 16
row "+ columns by magnitude instead, one table" --calibration none --order magnitude --rotation off --tables 1
row "calibrated, nearest" "${base[@]}" --rounding nearest
row "+ feedback" "${base[@]}" --rounding feedback
row "+ all levels jointly" "${base[@]}" --rounding joint
row "+ columns by magnitude" --order magnitude --rotation off --tables 1 --rounding joint
row "+ rotation of down's inputs" --order source --rotation on --tables 1 --rounding joint
row "everything" --order magnitude --rotation on --tables 16 --rounding joint
