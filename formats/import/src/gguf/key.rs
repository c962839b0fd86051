//! Conversion of single GGUF keys.

/// Key of the layers with a sliding window.
pub const PATTERN: &str = "attention.sliding_window_pattern";

/// Conversion of a GGUF key to a `config.json` key.
pub enum Key {
    /// Same value under a different name.
    Same(&'static str, &'static str),
    /// Same value; absent or 0 means none.
    Optional(&'static str, &'static str),
    /// Integer quotient of two GGUF keys under a `config.json` name: dividend, divisor, name.
    Quotient(&'static str, &'static str, &'static str),
    /// Boolean per layer, converted to layer kinds: the name for 0 and the name for 1. If absent, the
    /// family's default applies.
    Kinds(&'static str, &'static str, [&'static str; 2]),
    /// Number of key heads per layer, 0 for layers without attention: the name of the number, the name of the
    /// layer kinds, and the kinds for 0 and for others.
    HeadsByLayer(&'static str, &'static str, &'static str, [&'static str; 2]),
    /// Width per layer, 0 for layers without that part: the name of the width, the name of the layer kinds, and the
    /// kind of the other layers.
    WidthsByLayer(&'static str, &'static str, &'static str, &'static str),
    /// Boolean, converted to a text: that for false, and that for true or an absent key.
    Choice(&'static str, &'static str, [&'static str; 2]),
    /// Value of each layer, or one for all layers: the name of the first layer's value, and the name of the list.
    EachLayer(&'static str, [&'static str; 2]),
    /// Different values for layers with and without a sliding window, each with its own name.
    ByWindow(&'static str, [&'static str; 2]),
}

impl Key {
    /// Returns the GGUF name of the key.
    pub const fn theirs(&self) -> &'static str {
        match self {
            Self::Same(theirs, _)
            | Self::Optional(theirs, _)
            | Self::Quotient(theirs, ..)
            | Self::Kinds(theirs, ..)
            | Self::HeadsByLayer(theirs, ..)
            | Self::WidthsByLayer(theirs, ..)
            | Self::Choice(theirs, ..)
            | Self::EachLayer(theirs, _)
            | Self::ByWindow(theirs, _) => theirs,
        }
    }
}
