//! Values by key, in the order in which the keys were first mentioned.

/// Returns the value of a key among few; adds an empty one if the key is new.
pub fn value_of<K: PartialEq, V: Default>(pairs: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = pairs.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        pairs.push((key, V::default()));
        pairs.len() - 1
    });
    &mut pairs[at].1
}
