//! Keeps graphics drivers from writing to standard error.
#![expect(unsafe_code, reason = "the environment is changed before there are threads")]

/// Mesa's Vulkan layer that orders devices for desktops asks Wayland for one, and where there is no
/// desktop, Wayland's library prints an error for every question. To be called before anything else.
pub fn quieten() {
    if cfg!(unix) && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: nothing has started a thread yet that could read the environment meanwhile.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
