const TAPS_MAX = 16u;

// The rows of a channel that a convolution sees before the first of this run, oldest first. `params.source` says where
// the state before the run is: 0 nowhere, 1 `before`, 2 `after`, which is then changed in place.
fn window_before(channel: u32) -> array<f32, TAPS_MAX> {
    var window: array<f32, TAPS_MAX>;
    for (var tap = 0u; tap + 1u < params.taps; tap += 1u) {
        let at = tap * params.channels + channel;
        if params.source == 1u {
            window[tap] = before[at];
        } else if params.source == 2u {
            window[tap] = after[at];
        }
    }
    return window;
}

// Writes the rows that the next run sees.
fn write_window(channel: u32, rows: array<f32, TAPS_MAX>) {
    var window = rows;
    for (var tap = 0u; tap + 1u < params.taps; tap += 1u) {
        after[tap * params.channels + channel] = window[tap];
    }
}
