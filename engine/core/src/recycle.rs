//! Reuse of the memory of vectors whose items borrow from one step.

/// Converts a vector to an empty one of another item type, reusing its memory. The item types must have the
/// same size, for example types that differ in a lifetime.
pub fn recycle<A, B>(mut items: Vec<A>) -> Vec<B> {
    items.clear();
    // Collecting from a vector's own iterator reuses its allocation.
    items.into_iter().filter_map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::recycle;

    #[test]
    fn the_memory_stays() {
        let text = String::from("text");
        let mut items: Vec<&str> = Vec::with_capacity(10);
        items.push(&text);
        let memory = items.as_ptr().addr();
        let other: Vec<&'static str> = recycle(items);
        assert_eq!((other.as_ptr().addr(), other.capacity(), other.len()), (memory, 10, 0));
    }
}
