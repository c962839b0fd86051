//! What the type numbers of a tensor table mean.

use super::BlockType;
use crate::ElementType;
use nestling_formats::DType;

/// A type of the format, supported or not.
pub(super) struct ElementLayout {
    /// The type, if it can be read.
    pub element: Option<ElementType>,
    /// What llama.cpp calls it.
    pub name: &'static str,
    /// Numbers of a block.
    pub elements: u64,
    /// Bytes of a block.
    pub bytes: u64,
}

/// What a type number of a tensor table means.
pub(super) fn element_layout(number: u32) -> Option<ElementLayout> {
    let block = BlockType::ALL.into_iter().find(|block| block.number() == number);
    let float = [DType::F32, DType::F16, DType::Bf16].into_iter().zip([0, 1, 30]);
    let float = float.filter(|(_, known)| *known == number).map(|(dtype, _)| dtype).next();
    let element = block.map(ElementType::Block).or(float.map(ElementType::Float));
    if let Some(element) = element {
        let (name, elements) = (element.name(), element.block_elements() as u64);
        return Some(ElementLayout {
            element: Some(element),
            name,
            elements,
            bytes: element.block_bytes() as u64,
        });
    }
    let (_, name, elements, bytes) = *UNSUPPORTED.iter().find(|known| known.0 == number)?;
    Some(ElementLayout { element: None, name, elements, bytes })
}

/// Number, name, numbers and bytes of a block.
const UNSUPPORTED: &[(u32, &str, u64, u64)] = &[
    (9, "Q8_1", 32, 36),
    (15, "Q8_K", 256, 292),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
];
