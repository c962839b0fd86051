//! A codec of either kind: nested code or scaled integers.

use std::sync::Arc;

use super::{InputTransform, NestedCodec, PlaneForm, ScaledCodec};
use crate::Level;

/// The codec of a matrix, shared between the matrices that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Codec {
    /// The nested code.
    Nested(Arc<NestedCodec>),
    /// Scaled integers.
    Scaled(Arc<ScaledCodec>),
}

/// A borrowed [`Codec`].
#[derive(Clone, Copy, Debug)]
pub enum CodecRef<'a> {
    /// The nested code.
    Nested(&'a NestedCodec),
    /// Scaled integers.
    Scaled(&'a ScaledCodec),
}

impl Codec {
    /// Returns a borrowed view of the codec.
    pub fn borrow(&self) -> CodecRef<'_> {
        match self {
            Self::Nested(codec) => CodecRef::Nested(codec),
            Self::Scaled(codec) => CodecRef::Scaled(codec),
        }
    }

    /// Returns the nested codec, or `None` for scaled integers.
    pub fn nested(&self) -> Option<&Arc<NestedCodec>> {
        match self {
            Self::Nested(codec) => Some(codec),
            Self::Scaled(_) => None,
        }
    }

    /// Returns the transform applied to inputs before a product.
    pub fn inputs(&self) -> InputTransform {
        match self {
            Self::Nested(codec) => codec.inputs,
            Self::Scaled(_) => InputTransform::None,
        }
    }

    /// Returns the codec parameters that determine the sizes of planes.
    pub fn form(&self) -> PlaneForm {
        self.borrow().form()
    }

    /// Encodes the codec as stored in a `.nest` file.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Nested(codec) => codec.to_bytes(),
            Self::Scaled(codec) => codec.to_bytes(),
        }
    }
}

impl CodecRef<'_> {
    /// Returns the codec parameters that determine the sizes of planes.
    pub fn form(&self) -> PlaneForm {
        match self {
            Self::Nested(_) => PlaneForm::Nested,
            Self::Scaled(codec) => PlaneForm::Scaled(codec.form),
        }
    }

    /// Decodes a code, of which only the leading bits of `level` count. `table` is the tile's table; scaled
    /// integers ignore it.
    pub fn value(&self, level: Level, table: u8, code: u8) -> i16 {
        match self {
            Self::Nested(codec) => codec.value(level, table, code),
            Self::Scaled(codec) => codec.value(level, code).into(),
        }
    }
}

impl From<Arc<NestedCodec>> for Codec {
    fn from(codec: Arc<NestedCodec>) -> Self {
        Self::Nested(codec)
    }
}

impl From<NestedCodec> for Codec {
    fn from(codec: NestedCodec) -> Self {
        Self::Nested(Arc::new(codec))
    }
}

impl From<ScaledCodec> for Codec {
    fn from(codec: ScaledCodec) -> Self {
        Self::Scaled(Arc::new(codec))
    }
}

impl<'a> From<&'a NestedCodec> for CodecRef<'a> {
    fn from(codec: &'a NestedCodec) -> Self {
        Self::Nested(codec)
    }
}

impl<'a> From<&'a Arc<NestedCodec>> for CodecRef<'a> {
    fn from(codec: &'a Arc<NestedCodec>) -> Self {
        Self::Nested(codec)
    }
}

impl<'a> From<&'a ScaledCodec> for CodecRef<'a> {
    fn from(codec: &'a ScaledCodec) -> Self {
        Self::Scaled(codec)
    }
}

impl<'a> From<&'a Codec> for CodecRef<'a> {
    fn from(codec: &'a Codec) -> Self {
        codec.borrow()
    }
}
