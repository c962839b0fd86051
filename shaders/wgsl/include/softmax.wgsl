// Parts of a softmax that are merged.

// Pages that are merged to a block, before blocks are.
const BLOCK_PAGES: u32 = 8u;

const LOWEST: f32 = -3.4028234e38;

// What was seen so far: the largest score, and the sum of exponentials below it.
struct Softmax {
    largest: f32,
    sum: f32,
}

fn nothing() -> Softmax {
    return Softmax(LOWEST, 0.0);
}

// Two parts together, and what the values of each are multiplied by.
struct Merge {
    both: Softmax,
    old: f32,
    fresh: f32,
}

fn merge_of(before: Softmax, part: Softmax) -> Merge {
    let largest = max(part.largest, before.largest);
    let old = select(exp_of(before.largest - largest), 0.0, before.largest == LOWEST);
    let fresh = exp_of(part.largest - largest);
    return Merge(Softmax(largest, fma(before.sum, old, part.sum * fresh)), old, fresh);
}

// What values are multiplied by and divided by in the end. A sink is a score without a value.
struct Ending {
    factor: f32,
    sum: f32,
}

fn ending_of(all: Softmax, has_sink: bool, sink: f32) -> Ending {
    if !has_sink {
        return Ending(1.0, all.sum);
    }
    let largest = max(sink, all.largest);
    let factor = exp_of(all.largest - largest);
    return Ending(factor, fma(all.sum, factor, exp_of(sink - largest)));
}
