#!/usr/bin/env bash
# Fills the templates of package managers with the version, the commit and the checksums of a release.
#
#     packaging/fill.sh SHA256SUMS FOLDER
#
# SHA256SUMS  checksums of the release's files, as scripts/release.sh writes them
# FOLDER      folder of the results: homebrew/nestling.rb, winget/*.yaml
#
# @VERSION@, @COMMIT@ and @SHA256:FILE@ are replaced, and the line that names the template is left out. A template whose files
# SHA256SUMS does not name is skipped with a message, together with the other templates of its folder. It is an error if all
# are skipped.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
sums=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
commit=$(git rev-parse HEAD)

# fill TEMPLATE: prints a template with its placeholders replaced; fails if a checksum is missing.
fill() {
    local text name sum
    text=$(sed -e '/^# Template/d' -e "s/@VERSION@/$version/g" -e "s/@COMMIT@/$commit/g" "$1")
    while [[ $text =~ @SHA256:([^@]+)@ ]]; do
        name=${BASH_REMATCH[1]}
        sum=$(awk -v name="$name" '$2 == name || $2 == "*" name { print $1 }' "$sums")
        [[ $sum =~ ^[0-9a-f]{64}$ ]] || { echo "no checksum of $name" >&2; return 1; }
        text=${text//"@SHA256:$name@"/$sum}
    done
    printf '%s\n' "$text"
}

filled=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for folder in homebrew winget; do
    mkdir "$work/$folder"
    for template in packaging/"$folder"/*; do
        if ! fill "$template" >"$work/$folder/$(basename "$template")"; then
            echo "skipped: packaging/$folder" >&2
            continue 2
        fi
    done
    rm -rf "${out:?}/$folder"
    cp -r "$work/$folder" "$out/$folder"
    filled=$((filled + 1))
done
[ "$filled" -gt 0 ]
