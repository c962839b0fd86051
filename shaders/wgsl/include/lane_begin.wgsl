    // How many lanes exchange values among themselves: of a subgroup, here none.
    let width = 1u;
