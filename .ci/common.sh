# Shared by the scripts of this folder: environment, steps with budgets, tools by name. Sourced, never run.

export CARGO_TERM_COLOR=never RUST_BACKTRACE=1
# Nothing is rebuilt within a run, and a panic names its line without debug information.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$target/tools

# Packages of the tests' build. Every build names all of it, so that cargo selects the same features of each dependency and
# builds it once. `--test tidy` counts the features of development dependencies, as `cargo test --workspace` does.
test_build=(build --quiet --locked --workspace)

build_table=
build_name=
build_budget=
build_started=0
build_cpu=0

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
    [ -n "$build_name" ] || return 0
    count_cpu
    local seconds=$((SECONDS - build_started)) cpu=$((cpu_seconds - build_cpu)) mark=
    [ "$seconds" -le "$build_budget" ] || mark=' over budget'
    printf -- '--- %s: %s s of %s s, %s s of processor time%s\n' "$build_name" "$seconds" "$build_budget" "$cpu" "$mark"
    build_table+=$(printf '%-58s %7s %7s %9s%s' "$build_name" "$seconds" "$build_budget" "$cpu" "$mark")$'\n'
    build_name=
}

# step NAME BUDGET: ends the current step and starts another one, which should take at most BUDGET seconds.
step() {
    close_step
    printf '\n=== %s (at %s s)\n' "$1" "$SECONDS"
    count_cpu
    build_name=$1 build_budget=$2 build_started=$SECONDS build_cpu=$cpu_seconds
}

# Ends the last step and prints the table of all.
finish_steps() {
    close_step
    count_cpu
    printf '\n%-58s %7s %7s %9s\n%s' step seconds budget processor "$build_table"
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
