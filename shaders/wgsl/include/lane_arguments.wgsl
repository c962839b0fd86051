    // Subgroups are passed here where shaders use them.
