//! Type numbers of GGUF tensor tables.

use super::BlockType;
use crate::ElementType;
use nestling_formats::DType;

/// Layout of an element type, supported or not.
pub(super) struct ElementLayout {
    /// The type, if it is supported.
    pub element: Option<ElementType>,
    /// llama.cpp's name of the type.
    pub name: &'static str,
    /// Number of elements per block.
    pub elements: u64,
    /// Size of a block in bytes.
    pub bytes: u64,
}

/// Returns the layout of a type number, or `None` if it is unknown.
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

/// Unsupported types: number, name, elements per block and bytes per block.
const UNSUPPORTED: &[(u32, &str, u64, u64)] = &[
    (9, "Q8_1", 32, 36),
    (15, "Q8_K", 256, 292),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
];
