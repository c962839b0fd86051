#!/usr/bin/env bash
# Builds libnestling and installs it as `cargo cinstall` does, for machines without cargo-c: the shared and the static
# library, the headers, a file for pkg-config, a package for CMake, and the licences of all linked code (by python3).
#
#     apps/c/install.sh PREFIX [ARGUMENT OF CARGO...]
#
# The arguments are those of `cargo rustc`, such as `--features wgpu`; without `--profile` it is a release build.
# DESTDIR is put before the prefix, as packagers want it. With NESTLING_BUILT=1, what cargo built before is installed.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
prefix=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$here/cmake/nestlingConfigVersion.cmake")
minor=${version%.*} major=${version%%.*}
# Below 1.0.0 the second number says what is compatible.
[ "$major" = 0 ] && so=$minor || so=$major
profile=release
arguments=("$@")
for at in "${!arguments[@]}"; do
    [ "${arguments[$at]}" != --profile ] || profile=${arguments[$((at + 1))]}
done
[[ " $* " == *" --profile "* ]] || arguments+=(--release)

case $(uname -s) in
    Darwin) file=libnestling.$version.dylib links=("libnestling.$so.dylib" libnestling.dylib)
        named="-Wl,-install_name,$prefix/lib/libnestling.$so.dylib" built=libnestling_c.dylib needed= ;;
    *) file=libnestling.so.$version links=("libnestling.so.$so" libnestling.so)
        named="-Wl,-soname,libnestling.so.$so" built=libnestling_c.so needed="-lpthread -lm -ldl" ;;
esac
cd "$here"
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
folder=$target/$profile
[ "$profile" != dev ] || folder=$target/debug
[ -n "${NESTLING_BUILT:-}" ] ||
    cargo rustc --quiet --locked -p nestling-c --lib --crate-type cdylib,staticlib "${arguments[@]}" -- -C "link-arg=$named"

root=${DESTDIR:-}$prefix
mkdir -p "$root/lib/pkgconfig" "$root/include" "$root/share/nestling/cmake"
install -m 755 "$folder/$built" "$root/lib/$file"
install -m 644 "$folder/libnestling_c.a" "$root/lib/libnestling.a"
./local_symbols.sh "$root/lib/libnestling.a"
for link in "${links[@]}"; do ln -sf "$file" "$root/lib/$link"; done
install -m 644 include/nestling.h include/nestling.hpp "$root/include"
licences=$root/share/licenses/nestling
mkdir -p "$licences"
install -m 644 ../../LICENSE-APACHE ../../LICENSE-MIT "$licences"
features=()
for at in "${!arguments[@]}"; do
    [ "${arguments[$at]}" != --features ] || IFS=', ' read -ra features <<<"${arguments[$((at + 1))]}"
done
../../scripts/third_party.py nestling-c "$licences/THIRD-PARTY.txt" ${features[@]+"${features[@]}"}
install -m 644 cmake/nestlingConfig.cmake cmake/nestlingConfigVersion.cmake "$root/share/nestling/cmake"
cat > "$root/lib/pkgconfig/nestling.pc" <<PC
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: nestling
Description: Mixture-of-Experts language models larger than memory
Version: $version
Libs: -L\${libdir} -lnestling
Libs.private: $needed
Cflags: -I\${includedir}
PC
