// The experts of every row and their weights, ascending, by the router's rule. Of equal scores the
// lower expert wins; NaN counts as largest, so that it is not lost. One workgroup for each row.

struct Params {
    rows: u32,
    experts: u32,
    per_token: u32,
    // 1: sigmoid of every logit; 0: softmax.
    sigmoid_scores: u32,
    // 1: the weights of a row are divided by their sum.
    normalizes: u32,
    scale: f32,
    has_logit_bias: u32,
    has_selection_bias: u32,
    has_expert_scale: u32,
    // Groups of experts, 0 for none, and how many of them are kept.
    groups: u32,
    groups_kept: u32,
    // 1: groups are judged by their two best; 0: by the best.
    two_best: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [rows, experts]
@group(0) @binding(2) var<storage, read> logit_bias: array<f32>; // [experts]
@group(0) @binding(3) var<storage, read> selection_bias: array<f32>; // [experts]
@group(0) @binding(4) var<storage, read> expert_scale: array<f32>; // [experts]
@group(0) @binding(5) var<storage, read_write> ids: array<u32>; // [rows, per_token]
@group(0) @binding(6) var<storage, read_write> weights: array<f32>; // [rows, per_token]

// include: exp
// include: reduce
// include: order

const LOWEST: f32 = -3.4028234e38;
// The order of negative infinity, which nothing but what was taken is below.
const MASKED: u32 = 0x007fffffu;

var<workgroup> scores: array<f32, 1024>;
// What is compared, as integers of the same order; 0 for experts that were taken.
var<workgroup> order: array<u32, 1024>;
var<workgroup> group_scores: array<f32, 64>;
var<workgroup> chosen: array<u32, 64>;
var<workgroup> chosen_weights: array<f32, 64>;

fn order_of(value: f32) -> u32 {
    if is_nan(value) {
        return 0xffffffffu;
    }
    return order_of_bits(bitcast<u32>(value));
}

fn value_of(ordered: u32) -> f32 {
    return bitcast<f32>(select(~ordered, ordered & 0x7fffffffu, ordered >> 31u == 1u));
}

fn make_scores(row: u32, lane: u32, width: u32) {
    var largest = LOWEST;
    for (var expert = lane; expert < params.experts; expert += LANES) {
        var logit = logits[row * params.experts + expert];
        if params.has_logit_bias == 1u {
            logit += logit_bias[expert];
        }
        scores[expert] = logit;
        largest = select(largest, logit, logit > largest);
    }
    largest = max_lanes(lane, width, largest);
    var part = 0.0;
    for (var expert = lane; expert < params.experts; expert += LANES) {
        if params.sigmoid_scores == 1u {
            scores[expert] = sigmoid(scores[expert]);
        } else {
            scores[expert] = exp_of(scores[expert] - largest);
            part += scores[expert];
        }
    }
    let sum = sum_lanes(lane, width, part);
    for (var expert = lane; expert < params.experts; expert += LANES) {
        if params.sigmoid_scores == 0u {
            scores[expert] /= sum;
        }
        var value = scores[expert];
        if params.has_selection_bias == 1u {
            value += selection_bias[expert];
        }
        order[expert] = order_of(value);
    }
    workgroupBarrier();
}

// Masks all groups of experts but the best; of equal groups the lower is kept.
fn mask_groups(lane: u32) {
    let size = max(params.experts / max(params.groups, 1u), 1u);
    if lane < params.groups {
        var best = LOWEST;
        var second = LOWEST;
        for (var i = 0u; i < size; i += 1u) {
            let value = value_of(order[lane * size + i]);
            if value > best {
                second = best;
                best = value;
            } else if value > second {
                second = value;
            }
        }
        group_scores[lane] = select(best, best + second, params.two_best == 1u);
    }
    workgroupBarrier();
    if lane < params.groups {
        let own = group_scores[lane];
        var before = 0u;
        for (var other = 0u; other < params.groups; other += 1u) {
            let theirs = group_scores[other];
            before += select(0u, 1u, theirs > own || (theirs == own && other < lane));
        }
        if before >= params.groups_kept {
            for (var i = 0u; i < size; i += 1u) {
                order[lane * size + i] = MASKED;
            }
        }
    }
    workgroupBarrier();
}

// The best expert that was not taken yet, in all lanes.
fn find_best(lane: u32) -> u32 {
    var best = 0u;
    var at = 0u;
    for (var expert = lane; expert < params.experts; expert += LANES) {
        if order[expert] > best {
            best = order[expert];
            at = expert;
        }
    }
    return first_of_lanes(lane, best, at);
}

// The weights of the chosen, best first, and then both in ascending order of experts.
fn finish(row: u32) {
    var sum = 0.0;
    for (var i = 0u; i < params.per_token; i += 1u) {
        chosen_weights[i] = scores[chosen[i]];
        sum += chosen_weights[i];
    }
    for (var i = 0u; i < params.per_token; i += 1u) {
        var weight = chosen_weights[i];
        if params.normalizes == 1u {
            weight /= sum;
        }
        weight *= params.scale;
        if params.has_expert_scale == 1u {
            weight *= expert_scale[chosen[i]];
        }
        var place = 0u;
        for (var other = 0u; other < params.per_token; other += 1u) {
            place += select(0u, 1u, chosen[other] < chosen[i]);
        }
        ids[row * params.per_token + place] = chosen[i];
        weights[row * params.per_token + place] = weight;
    }
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    // include: lane_arguments
) {
    // include: lane_begin
    let row = group.y * groups.x + group.x;
    if row >= params.rows {
        return;
    }
    make_scores(row, lane, width);
    if params.groups > 0u {
        mask_groups(lane);
    }
    for (var i = 0u; i < params.per_token; i += 1u) {
        let best = find_best(lane);
        if lane == 0u {
            chosen[i] = best;
            order[best] = 0u;
        }
        workgroupBarrier();
    }
    if lane == 0u {
        finish(row);
    }
}
