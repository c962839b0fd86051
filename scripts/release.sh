#!/usr/bin/env bash
# Makes what is given away of a release: archives and Debian packages of the program, the library for C and C++ and the
# Python wheels for this machine's target, and their checksums.
#
#     scripts/release.sh [--dry] [TARGET…]
#
# TARGET   Rust target of Linux (that of this machine); others than this machine's are linked by Zig, which pip installs.
#          Those of glibc run with glibc 2.28 and later if Zig links them; this machine's target gets this machine's glibc,
#          unless ZIG=1.
# --dry    packs a development build, to try everything else; no wheels, which `.ci/python` builds and tries
# RELEASE  folder of the results (target/release-files)
# ZIG      1 to link this machine's target by Zig too
# PARTS    parts to make of `programs library wheels` (all)
#
# An archive has the program, the bundled model beside it, manual pages, completions, licences of all linked code and a
# unit of systemd. A Debian package has the same in the folders of a system. Files have the date of the commit, so that equal
# programs make equal archives.
set -euo pipefail
cd "$(dirname "$0")/.."
source .ci/common.sh
profile=dist built=dist
parts=${PARTS:-programs library wheels}
for part in $parts; do
    case $part in programs | library | wheels) ;; *) echo "unknown part: $part; the parts are: programs library wheels" >&2; exit 2 ;; esac
done
if [ "${1:-}" = --dry ]; then profile=dev built=debug; shift; fi
host=$(rustc -vV | sed -n 's/^host: //p')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
commit=$(git rev-parse --short=8 HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
out=${RELEASE:-$target/release-files}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git diff --quiet HEAD || echo "the working tree has changes that commit $commit does not have" >&2

# build TARGET: builds the program; sets program to its path.
build() {
    local of=$1 names=$1
    if [ "$of" = "$host" ] && [ -z "${ZIG:-}" ]; then
        case $profile in
            # The build that tests use.
            dev) cargo "${test_build[@]}" --bins --test tidy ;;
            *) cargo build --quiet --locked --profile "$profile" -p nestling-cli ;;
        esac
        program=$target/$built/nestling
        return
    fi
    rustup --quiet target add "$of"
    python_environment "$tools"
    "$tools/bin/pip" install --quiet --only-binary :all: cargo-zigbuild==0.24.1 ziglang==0.17.1
    [[ $of != *-gnu ]] || names=$of.2.28
    PATH=$tools/bin:$PATH cargo zigbuild --quiet --locked --profile "$profile" -p nestling-cli --target "$names"
    program=$target/$of/$built/nestling
}

# strip_to PROGRAM FILE: copies a program without its symbols. objcopy of Rust's toolchain knows every target.
strip_to() {
    local objcopy
    rustup --quiet component add llvm-tools
    objcopy=$(echo "$(rustc --print sysroot)"/lib/rustlib/"$host"/bin/rust-objcopy)
    "$objcopy" --strip-all "$1" "$2"
}

# pack FOLDER FILE: packs a folder as the same bytes each time.
pack() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$(dirname "$1")" -c "$(basename "$1")" |
        gzip -9n >"$2"
}

# The pages and scripts come from this machine's program, which knows the same commands.
common() {
    local own=$work/common
    mkdir -p "$own"/{man,completions}
    [ -x "${runs:-}" ] || { build "$host"; runs=$program; }
    "$runs" man "$own/man"
    for shell in bash zsh fish; do "$runs" completions "$shell" >"$own/completions/nestling.$shell"; done
    scripts/third_party.py nestling-cli "$own/THIRD-PARTY.txt"
    cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT packaging/nestling.service "$own"
}

archive() {
    local name=nestling-$version-$1
    local folder=$work/$name
    mkdir "$folder"
    cp -r "$work/common/." models/nestling-storyteller.nest "$folder"
    strip_to "$program" "$folder/nestling"
    pack "$folder" "$out/$name.tar.gz"
}

# bill TARGET: writes the bill of materials of the program for a target.
bill() {
    python_environment "$tools/bill"
    "$tools/bill/bin/pip" install --quiet --only-binary :all: 'cyclonedx-python-lib[json-validation]==11.12.0'
    "$tools/bill/bin/python" -B scripts/bill_of_materials.py nestling-cli "$1" "$out/nestling-$version-$1.cdx.json"
}

# Debian's names of processors.
processor() {
    case $1 in x86_64-*) echo amd64 ;; aarch64-*) echo arm64 ;; *) return 1 ;; esac
}

debian() {
    local of root=$work/deb needed='libc6 (>= 2.28)'
    of=$(processor "$1")
    # What is linked by this machine's linker needs its C library.
    if [ "$1" = "$host" ] && [ -z "${ZIG:-}" ]; then needed="libc6 (>= $(ldd --version | sed -n '1s/.* //p'))"; fi
    rm -rf "$root"
    mkdir -p "$root"/DEBIAN "$root"/usr/{bin,share/nestling,share/man/man1,share/doc/nestling,lib/systemd/system} \
        "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
    strip_to "$program" "$root/usr/bin/nestling"
    cp models/nestling-storyteller.nest "$root/usr/share/nestling"
    cp "$work"/common/man/*.1 "$root/usr/share/man/man1"
    gzip -9n "$root"/usr/share/man/man1/*.1
    cp "$work/common/completions/nestling.bash" "$root/usr/share/bash-completion/completions/nestling"
    cp "$work/common/completions/nestling.zsh" "$root/usr/share/zsh/vendor-completions/_nestling"
    cp "$work/common/completions/nestling.fish" "$root/usr/share/fish/vendor_completions.d/nestling.fish"
    cp packaging/nestling.service "$root/usr/lib/systemd/system"
    cat packaging/copyright LICENSE-MIT "$work/common/THIRD-PARTY.txt" >"$root/usr/share/doc/nestling/copyright"
    cp CHANGELOG.md "$root/usr/share/doc/nestling"
    sed -e "s/@VERSION@/$version/" -e "s/@PROCESSOR@/$of/" -e "s/@NEEDED@/$needed/" \
        -e "s/@KILOBYTES@/$(du -sk "$root/usr" | cut -f1)/" packaging/control >"$root/DEBIAN/control"
    chmod -R u=rwX,go=rX "$root"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/nestling_${version}_$of.deb" >/dev/null
}

# The library for C and C++, without GPUs: a folder that can be anywhere.
library() {
    local name=libnestling-$version-$host
    local root=$work/$name
    case $profile in
        dev)
            need patchelf patchelf
            cargo "${test_build[@]}" --lib --bins --test tidy
            NESTLING_BUILT=1 apps/c/install.sh "$root" --profile dev
            patchelf --set-soname "$(cd "$root/lib" && ls libnestling.so.?.?)" "$(realpath "$root/lib/libnestling.so")" ;;
        *) apps/c/install.sh "$root" --profile "$profile" ;;
    esac
    sed -i 's,^prefix=.*,prefix=${pcfiledir}/../..,' "$root/lib/pkgconfig/nestling.pc"
    strip --strip-debug "$root/lib/libnestling.a" "$(realpath "$root/lib/libnestling.so")"
    cp -r apps/c/examples apps/c/README.md "$root"
    pack "$root" "$out/$name.tar.gz"
}

# Wheels for every Python from 3.11 on, and the storyteller's. The module is linked by Zig against glibc 2.28.
wheels() {
    python_environment "$tools/wheels"
    "$tools/wheels/bin/pip" install --quiet --only-binary :all: maturin==1.16.0 hatchling==1.33.0 ziglang==0.17.1
    apps/python/licences.sh
    (cd apps/python && PATH="$tools/wheels/bin:$PATH" maturin build --quiet --profile "$profile" --locked --strip \
        --zig --compatibility manylinux_2_28 --out "$out")
    (cd apps/python/storyteller && PATH="$tools/wheels/bin:$PATH" "$tools/wheels/bin/hatchling" build -t wheel -d "$out")
}

programs() {
    [ $# -gt 0 ] || set -- "$host"
    common
    for of in "$@"; do
        build "$of"
        archive "$of"
        bill "$of"
        # Static programs need no package: their archive runs anywhere.
        [[ $of != *-gnu ]] || debian "$of"
    done
}

for part in $parts; do
    case $part in
        programs) programs "$@" ;;
        library) library ;;
        wheels) [ "$profile" = dev ] || wheels ;;
    esac
done
(cd "$out" && sha256sum -- *nestling*"$version"* >SHA256SUMS)
printf 'Version %s, commit %s, profile %s.\n' "$version" "$commit" "$profile"
(cd "$out" && stat -c '%s %n' -- *nestling*"$version"* | awk '{ printf "%6.1f MB  %s\n", $1 / 1e6, $2 }')
