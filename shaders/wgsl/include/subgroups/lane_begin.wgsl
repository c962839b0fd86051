    subgroup_lane = own_subgroup_lane;
