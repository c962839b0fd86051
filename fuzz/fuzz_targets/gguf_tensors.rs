//! Tensors of arbitrary GGUF files. Blocks must decode to the same numbers individually and together, and the
//! tensors of a header must lie within the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nestling_import::ElementType;
use nestling_import::gguf::{BlockType, GgufHeader};

/// Maximum number of elements decoded per tensor.
const ELEMENTS_MAX: usize = 1 << 16;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn decode(element: ElementType, bytes: &[u8]) {
    let (block_bytes, numbers) = (element.block_bytes(), element.block_elements());
    let blocks = (bytes.len() / block_bytes).min(ELEMENTS_MAX / numbers);
    let bytes = &bytes[..blocks * block_bytes];
    // A marker that no block decodes to, which shows that each number was written.
    let unwritten = f32::from_bits(0x7fc5_a5a5);
    let mut whole = vec![unwritten; blocks * numbers];
    element.decode(bytes, &mut whole);
    for (bytes, found) in bytes.chunks(block_bytes).zip(whole.chunks(numbers)) {
        let mut one = vec![unwritten; numbers];
        element.decode(bytes, &mut one);
        assert_eq!(bits(&one), bits(found), "{element}");
        assert!(
            element.float_bits_may_be_any() || found.iter().all(|x| x.to_bits() != 0x7fc5_a5a5)
        );
    }
    // Excess input or output is ignored.
    let mut more = vec![unwritten; whole.len() + 3];
    element.decode(bytes, &mut more);
    assert_eq!(bits(&more[whole.len()..]), [0x7fc5_a5a5; 3]);
    let mut less = vec![unwritten; whole.len().saturating_sub(1) / numbers * numbers];
    element.decode(bytes, &mut less);
    assert_eq!(bits(&less), bits(&whole[..less.len()]));
}

trait AnyBits {
    fn float_bits_may_be_any(&self) -> bool;
}

impl AnyBits for ElementType {
    /// Returns true if the bytes of a number are its bits.
    fn float_bits_may_be_any(&self) -> bool {
        matches!(self, Self::Float(_))
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    if let Some(block) = BlockType::ALL.get(usize::from(*kind)) {
        decode(ElementType::Block(*block), bytes);
        return;
    }
    let Ok(header) = GgufHeader::parse("fuzz", bytes, bytes.len() as u64) else { return };
    for tensor in &header.tensors {
        let (start, end) = (tensor.offset as usize, (tensor.offset + tensor.length) as usize);
        decode(tensor.element, &bytes[start..end]);
        let elements: u64 = tensor.shape.iter().product();
        let blocks = elements / tensor.element.block_elements() as u64;
        assert_eq!(blocks * tensor.element.block_bytes() as u64, tensor.length);
    }
});
