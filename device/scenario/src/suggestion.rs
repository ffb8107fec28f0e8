//! Names that are close to a wrong one.

/// How similar two names must be, from 0 to 1.
const SIMILAR: f64 = 0.8;
/// Longer names are not compared.
const MAX_LEN: usize = 64;

/// The allowed name that is most similar to `given`; `None` if none is similar.
pub(crate) fn closest<'a>(
    given: &str,
    allowed: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if given.len() > MAX_LEN {
        return None;
    }
    let given = given.to_ascii_lowercase();
    let similarity = |name: &str| strsim::jaro_winkler(&given, &name.to_ascii_lowercase());
    let rated = allowed.into_iter().map(|name| (similarity(name), name));
    let (similarity, name) = rated.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (similarity >= SIMILAR).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let allowed = ["drop", "delay", "duplicate"];
        assert_eq!(closest("drp", allowed), Some("drop"));
        assert_eq!(closest("DUPLICAT", allowed), Some("duplicate"));
        assert_eq!(closest("evict", allowed), None);
        assert_eq!(closest(&"d".repeat(100), allowed), None);
    }
}
