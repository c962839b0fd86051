# Shared by the scripts of this folder: environment, steps with budgets, tools by name. Sourced, never run.

export CARGO_TERM_COLOR=never RUST_BACKTRACE=1
# Nothing is rebuilt within a run, and a panic names its line without debug information.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$target/tools

# Arguments of every build besides the tests. The whole workspace is named, so that cargo selects the same features of each
# dependency and builds it once. `--test tidy` counts the features of development dependencies, as `cargo test --workspace` does.
test_build=(build --quiet --locked --workspace)

step_table=
step_name=
step_budget=
step_started=0
step_cpu=0

# Sets cpu_seconds to the processor seconds of all finished children.
count_cpu() {
    local file
    file=$(mktemp)
    # Not in a subshell, which would count its own children.
    times >"$file"
    cpu_seconds=$(awk 'NR == 2 { split($0, t, /[ms ]+/); printf "%d", t[1] * 60 + t[2] + t[3] * 60 + t[4] }' "$file")
    rm "$file"
}

close_step() {
    [ -n "$step_name" ] || return 0
    count_cpu
    local seconds=$((SECONDS - step_started)) cpu=$((cpu_seconds - step_cpu)) mark=
    [ "$seconds" -le "$step_budget" ] || mark=' over budget'
    printf -- '--- %s: %s s of %s s, %s s of processor time%s\n' "$step_name" "$seconds" "$step_budget" "$cpu" "$mark"
    step_table+=$(printf '%-58s %7s %7s %9s%s' "$step_name" "$seconds" "$step_budget" "$cpu" "$mark")$'\n'
    step_name=
}

# step NAME BUDGET: ends the current step and starts another one, which should take at most BUDGET seconds.
step() {
    close_step
    printf '\n=== %s (at %s s)\n' "$1" "$SECONDS"
    count_cpu
    step_name=$1 step_budget=$2 step_started=$SECONDS step_cpu=$cpu_seconds
}

# Ends the last step and prints the table of all.
finish_steps() {
    close_step
    count_cpu
    printf '\n%-58s %7s %7s %9s\n%s' step seconds budget processor "$step_table"
    printf '%-58s %7s %7s %9s\n' all "$SECONDS" '' "$cpu_seconds"
}

# need COMMAND PACKAGE…: installs Debian packages unless the command is present.
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null || install_packages "$@"
}

install_packages() {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"
}

# python_environment FOLDER: creates a virtual environment unless it exists.
python_environment() {
    [ ! -x "$1/bin/pip" ] || return 0
    python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
    python3 -m venv "$1"
}

# build_wheels FOLDER: builds the wheels of the Python package and of its model.
build_wheels() {
    local wheel_tools=$tools/wheels cargo
    python_environment "$wheel_tools"
    "$wheel_tools/bin/pip" install --quiet --only-binary :all: maturin==1.16.0 hatchling==1.33.0
    # maturin builds one crate, for which cargo would select other features of dependencies and build them again. This
    # stand-in for cargo builds the whole workspace as the tests do, and maturin takes the module out of it.
    cargo=$(mktemp)
    cat >"$cargo" <<END
#!/bin/sh
[ "\$1" = rustc ] || exec cargo "\$@"
exec cargo build --locked --workspace --lib --bins --test tidy --message-format json-render-diagnostics --manifest-path "$PWD/Cargo.toml"
END
    chmod +x "$cargo"
    apps/python/licences.sh
    (cd apps/python && CARGO=$cargo CARGO_TARGET_DIR=$target "$wheel_tools/bin/maturin" build --quiet --profile dev --locked --out "$1")
    (cd apps/python/storyteller && PATH="$wheel_tools/bin:$PATH" "$wheel_tools/bin/hatchling" build -t wheel -d "$1")
    rm "$cargo"
}

# Path of Mesa's description of its software Vulkan driver; empty if it is not installed.
find_lavapipe() { find /usr/share/vulkan/icd.d -name 'lvp_icd*.json' 2>/dev/null | head -n 1; }

# Runs GPU tests on Mesa's software Vulkan alone, in subgroups of 8 whatever the processor. Without it they are an error.
use_lavapipe() {
    [ -n "$(find_lavapipe)" ] || install_packages mesa-vulkan-drivers
    VK_DRIVER_FILES=$(find_lavapipe)
    XDG_RUNTIME_DIR=$(mktemp -d)
    export VK_DRIVER_FILES VK_ICD_FILENAMES=$VK_DRIVER_FILES XDG_RUNTIME_DIR NESTLING_TEST_GPU=required
    export LP_NATIVE_VECTOR_WIDTH=256 NESTLING_TEST_SUBGROUPS=8
}
