//! The memory of vectors whose items borrow from one step.

/// An empty vector for other items of the same size, such as the same type with another lifetime,
/// in the memory of `items`.
pub fn recycle<A, B>(mut items: Vec<A>) -> Vec<B> {
    items.clear();
    // A vector that is collected from its own items stays where it is.
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
