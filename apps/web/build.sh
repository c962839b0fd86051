#!/usr/bin/env bash
# Builds the npm package and a static folder with the demo page.
#
#     apps/web/build.sh [FOLDER]   writes FOLDER/package and FOLDER/site (target/web)
set -euo pipefail
cd "$(dirname "$0")/../.."
source .ci/common.sh
out=$(realpath -m "${1:-$target/web}")

# The command must have the version of the crate.
version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/version = "\(.*\)"/\1/p}' Cargo.lock)
bindgen=$tools/wasm-bindgen-$version
[ -x "$bindgen/bin/wasm-bindgen" ] ||
    cargo install --quiet wasm-bindgen-cli --version "$version" --bin wasm-bindgen --root "$bindgen"
rustup --quiet target add wasm32-unknown-unknown

RUSTFLAGS='-C target-feature=+simd128 --cfg getrandom_backend="wasm_js"' \
    cargo build --quiet --locked --target wasm32-unknown-unknown --profile web -p nestling-web
rm -rf "$out/package" "$out/site"
mkdir -p "$out/package" "$out/site"
"$bindgen/bin/wasm-bindgen" --target web --no-typescript --remove-name-section --remove-producers-section \
    --out-name module --out-dir "$out/package" \
    "$target/wasm32-unknown-unknown/web/nestling_web.wasm"
cp apps/web/package.json apps/web/README.md apps/web/js/* LICENSE-* "$out/package/"
cp apps/web/demo/* models/nestling-storyteller.nest "$out/site/"
mkdir "$out/site/nestling"
cp "$out"/package/{index.js,worker.js,adapter.js,calls.js,suspend.js,team.js,rank.js,rings.js,files.js,module.js,module_bg.wasm} "$out/site/nestling/"
