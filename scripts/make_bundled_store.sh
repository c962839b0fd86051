#!/usr/bin/env bash
# Makes models/nestling-storyteller.nest of the demo model's Hugging Face folder and checks it.
#
#   scripts/make_bundled_store.sh HF_DIR
#
# The same checkpoint and quantizer give the same bytes on every machine.
set -euo pipefail
source_dir=$(realpath "${1:?give the Hugging Face folder of the demo model}")
cd "$(dirname "$0")/.."
store=models/nestling-storyteller.nest
made=$store.new
trap 'rm -f "$made" "$made.partial" "$made.journal"' EXIT
rm -f "$made"
cargo run --release --quiet -p nestling-cli -- convert "$source_dir" -o "$made" --rotation on
cargo run --release --quiet -p nestling-cli -- verify "$made"
size=$(stat -c %s "$made")
if [ "$size" -gt 32000000 ]; then
    echo "$made has $size bytes, over 32 MB" >&2
    exit 1
fi
mv "$made" "$store"
echo "$store: $size bytes"
