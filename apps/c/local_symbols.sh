#!/usr/bin/env bash
# Makes the C functions of dependencies local to their objects in a static library, so that a program can have its own.
# Nothing in the library calls them. Without objcopy, as on macOS, the library stays as it is.
#
#     apps/c/local_symbols.sh LIBRARY
set -euo pipefail
command -v objcopy >/dev/null || exit 0
objcopy --wildcard --localize-symbol 'llg_*' "$1"
