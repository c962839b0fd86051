    // And here noted.
