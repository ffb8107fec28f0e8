//! How much memory things take on the heap, at most.

/// What an allocator keeps beside an allocation, and rounds it up by.
pub(crate) const ALLOCATION: usize = 16;

/// Most bytes of a node of a `BTreeMap`: 11 entries, and an inner node has the addresses of 12 others.
const fn node<K, V>() -> usize {
    size_of::<(K, V)>()
        .saturating_mul(11)
        .saturating_add(size_of::<usize>().saturating_mul(16))
        .saturating_add(ALLOCATION)
}

/// Most bytes of each entry of a `BTreeMap`, beside a first node: all other nodes have 5 entries at least.
pub(crate) const fn entry<K, V>() -> usize {
    node::<K, V>().div_ceil(5)
}

/// Most bytes of a `BTreeMap` with so many entries.
pub(crate) const fn map<K, V>(entries: usize) -> usize {
    if entries == 0 {
        return 0;
    }
    node::<K, V>().saturating_add(entries.saturating_mul(entry::<K, V>()))
}

/// Bytes of an allocation of so many elements.
pub(crate) const fn array<T>(elements: usize) -> usize {
    if elements == 0 {
        return 0;
    }
    elements
        .saturating_mul(size_of::<T>())
        .saturating_add(ALLOCATION)
}
