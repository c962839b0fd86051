//! Keeps graphics drivers from writing to standard error.
#![expect(unsafe_code, reason = "the environment is changed before there are threads")]

/// Disables Mesa's Vulkan layer that orders devices for desktops. Without a desktop, the layer makes the
/// Wayland library print an error for every query. Must be called before any thread is started.
pub fn quieten() {
    if cfg!(unix) && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: threads that could read the environment have not been started yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
