#!/usr/bin/env bash
# Builds what is given away and prints a Markdown table of its sizes, its crates and the time of each build.
#
#     scripts/sizes.sh [ROW…]      all rows by default
#
# Rows: program, c, c-wgpu, c-gpu, wheel, mobile. `c` is libnestling without GPUs, `c-gpu` with wgpu and CUDA. Sizes are in MB (10⁶
# bytes) without symbols; "packed" is after gzip -9. Crates are those that are linked or run in the build, by `cargo tree`.
# Seconds are of a build after the rows above it, in the same folder.
#
# PROFILE           profile of cargo (dist)
# CARGO_TARGET_DIR  folder of the builds (target)
# MATURIN           command of maturin, for the wheel (maturin)
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-dist}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target} CARGO_INCREMENTAL=0
folder=$CARGO_TARGET_DIR/$profile
[ "$profile" != dev ] || folder=$CARGO_TARGET_DIR/debug
parts=$(mktemp -d)
trap 'rm -r "$parts"' EXIT
all="program c c-wgpu c-gpu wheel mobile"
[ $# -gt 0 ] || set -- $all
for row in "$@"; do
    case " $all " in *" $row "*) ;; *) echo "unknown row: $row; the rows are: $all" >&2; exit 2 ;; esac
done

# crates PACKAGE FEATURES: number of crates, without the package itself.
crates() {
    local count
    count=$(cargo tree --offline --locked -p "$1" --features "$2" -e normal,build --prefix none -f '{p}' | sed 's/ (\*)$//' | sort -u | wc -l)
    echo $((count - 1))
}

# megabytes FILE, packed FILE
megabytes() { awk -v bytes="$(stat -c %s "$1")" 'BEGIN { printf "%.1f", bytes / 1e6 }'; }
packed() { awk -v bytes="$(gzip -9 -c "$1" | wc -c)" 'BEGIN { printf "%.1f", bytes / 1e6 }'; }

# row NAME FILE SYMBOLS PACKAGE FEATURES SECONDS: strips a copy of the file (all or debug symbols) and prints its line.
row() {
    local copy=$parts/file
    cp "$2" "$copy"
    case $3 in all) strip --strip-all "$copy" ;; debug) strip --strip-debug "$copy" ;; esac
    printf '| %s | %s | %s | %s | %s |\n' "$1" "$(megabytes "$copy")" "$(packed "$copy")" "$(crates "$4" "$5")" "$6"
}

# timed COMMAND…: runs a command and sets seconds.
timed() {
    local started=$SECONDS
    "$@" >&2
    seconds=$((SECONDS - started))
}

library() {
    local name=$1 features=$2
    timed cargo rustc --quiet --locked --profile "$profile" -p nestling-c --lib --crate-type cdylib,staticlib --features "$features"
    cp "$folder/libnestling_c.a" "$parts/libnestling.a"
    apps/c/local_symbols.sh "$parts/libnestling.a"
    row "libnestling, shared$name" "$folder/libnestling_c.so" all nestling-c "$features" "$seconds"
    row "libnestling, static$name" "$parts/libnestling.a" debug nestling-c "$features" ''
}

wheel() {
    timed apps/python/licences.sh
    timed "${MATURIN:-maturin}" build --quiet --profile "$profile" --locked --strip -m apps/python/Cargo.toml --out "$parts"
    local file
    file=$(echo "$parts"/*.whl)
    row 'wheel, with wgpu and CUDA' "$file" none nestling-python cuda,wgpu "$seconds"
    python3 -m zipfile -e "$file" "$parts"
    row 'its module `_core`' "$(echo "$parts"/nestling/_core*.so)" all nestling-python cuda,wgpu ''
}

printf 'Commit %s, profile `%s`, `scripts/sizes.sh %s`.\n\n' "$(git rev-parse --short=8 HEAD)" "$profile" "$*"
printf '| | MB | packed | crates | seconds |\n|---|---:|---:|---:|---:|\n'
for row in "$@"; do
    case $row in
        program)
            timed cargo build --quiet --locked --profile "$profile" -p nestling-cli
            row 'program `nestling`' "$folder/nestling" all nestling-cli '' "$seconds" ;;
        mobile)
            timed cargo build --quiet --locked --profile "$profile" -p nestling-mobile
            row 'library for Kotlin and Swift' "$folder/libnestling_mobile.so" all nestling-mobile '' "$seconds" ;;
        c) library '' '' ;;
        c-wgpu) library ', with wgpu' wgpu ;;
        c-gpu) library ', with wgpu and CUDA' cuda,wgpu ;;
        wheel) wheel ;;
    esac
done
