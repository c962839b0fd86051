// Number of an invocation of workgroups of 64 that were spread over two dimensions.
fn element(group: vec3<u32>, groups: vec3<u32>, lane: u32) -> u32 {
    return (group.y * groups.x + group.x) * 64u + lane;
}
