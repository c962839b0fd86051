# What one types while working. Without `just` the lines below can be typed as they are; CONTRIBUTING.md has them.

# Lists these.
default:
    @just --list

# Formatting, compiler and clippy.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Everything that is tested.
test:
    cargo test --workspace

# Unit tests and one family: under a minute after a build.
fast:
    cargo test --quiet --workspace --lib
    cargo test --quiet --workspace --test families -- olmoe::

# House rules: words, layers, circles of files.
rules:
    cargo test --quiet --workspace --test tidy --test modules

# CUDA kernels on the emulated device.
emulated:
    cargo test --quiet --workspace --test 'cuda_*'

# Kernels of the CPU, by name: `just bench matvec`.
bench *names:
    cargo bench -p nestling-benches --bench kernels -- {{names}}

# The program as it is given away and measured.
dist:
    cargo build --profile dist -p nestling-cli

# What a change must pass.
all:
    .ci/run
