    subgroup_lane = own_subgroup_lane;
    subgroup_width = own_subgroup_width;
