//! Upper bounds of heap memory.

/// Overhead of an allocation: header and rounding.
pub(crate) const ALLOCATION: usize = 16;

/// Maximum size of a `BTreeMap` node: 11 entries, and the addresses of 12 children in an inner node.
const fn node<K, V>() -> usize {
    size_of::<(K, V)>()
        .saturating_mul(11)
        .saturating_add(size_of::<usize>().saturating_mul(16))
        .saturating_add(ALLOCATION)
}

/// Maximum bytes for each entry of a `BTreeMap`, not counting the first node: all other nodes have at least 5 entries.
pub(crate) const fn entry<K, V>() -> usize {
    node::<K, V>().div_ceil(5)
}

/// Maximum bytes of a `BTreeMap` with this number of entries.
pub(crate) const fn map<K, V>(entries: usize) -> usize {
    if entries == 0 {
        return 0;
    }
    node::<K, V>().saturating_add(entries.saturating_mul(entry::<K, V>()))
}

/// Bytes of an allocation of `elements` elements.
pub(crate) const fn array<T>(elements: usize) -> usize {
    if elements == 0 {
        return 0;
    }
    elements
        .saturating_mul(size_of::<T>())
        .saturating_add(ALLOCATION)
}
