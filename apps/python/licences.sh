#!/usr/bin/env bash
# Puts the licences that the wheel contains beside pyproject.toml: those of Nestling, and of the crates that it links.
set -euo pipefail
cd "$(dirname "$0")"
cp ../../LICENSE-APACHE ../../LICENSE-MIT .
../../scripts/third_party.py nestling-python THIRD-PARTY.txt cuda wgpu
