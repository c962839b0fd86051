#!/usr/bin/env bash
# What it costs that one code serves five levels: converts a checkpoint once as usual, and once for
# each level with all the weight of experts' errors on that level, and judges each store at its level.
#
#   scripts/nesting_cost.sh HF_DIR TEXT [TOKENS [LEVELS]]
#
# NESTLING names the program (default: target/release/nestling), WORK a directory for the stores.
set -euo pipefail

checkpoint=${1:?usage: scripts/nesting_cost.sh HF_DIR TEXT [TOKENS [LEVELS]]}
text=${2:?a text that calibration never saw}
judged=${3:-24576}
levels=${4:-2 3 4 6 8}
here=$(cd "$(dirname "$0")/.." && pwd)
nestling=${NESTLING:-$here/target/release/nestling}
work=${WORK:-$(mktemp -d)}
store=$work/nesting.nest

# Mean divergence and its standard error at some levels, a line for each.
judge() {
    "$nestling" -q perplexity -m "$store" --reference "$checkpoint" --file "$text" --weights-only \
        --attention-level 6 --tokens "$judged" --levels "$1" --json |
        python3 -c '
import json, sys
for row in json.load(sys.stdin)["rows"]:
    kl = row["kl"]
    print("%s %.5f ± %.5f" % (row["level"], kl["mean"], kl["standard_error"]))'
}

convert() { "$nestling" -q convert "$checkpoint" -o "$store" --force "$@" >&2; }

convert
echo "nested:"
judge "${levels// /,}"
for level in $levels; do
    weights=$(for other in 2 3 4 6 8; do printf '%d,' $((other == level)); done)
    convert --level-weights "${weights%,}"
    echo "for level $level alone:"
    judge "$level"
done
rm -f "$store"
