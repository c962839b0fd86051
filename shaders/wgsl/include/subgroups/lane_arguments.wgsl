    @builtin(subgroup_invocation_id) own_subgroup_lane: u32,
    @builtin(subgroup_size) width: u32,
