//! Urlencoded forms by their pairs, as browsers read them.

use percent_encoding::percent_decode;

/// A name and a value, decoded.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// The pairs in the order of their names. Several of one name stay, in the
/// order in which they came, which may matter. Any bytes are a form.
pub(super) fn pairs(body: &[u8]) -> Vec<Pair> {
    let mut pairs: Vec<_> = body
        .split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(pair)
        .collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

fn pair(text: &[u8]) -> Pair {
    match memchr::memchr(b'=', text) {
        Some(at) => (decode(&text[..at]), decode(&text[at + 1..])),
        None => (decode(text), Vec::new()),
    }
}

/// Undoes plus signs and percent escapes.
pub(super) fn decode(text: &[u8]) -> Vec<u8> {
    let spaced: Vec<u8> = text
        .iter()
        .map(|byte| if *byte == b'+' { b' ' } else { *byte })
        .collect();
    percent_decode(&spaced).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::order_of_names("b=2&a=1", &[("a", "1"), ("b", "2")])]
    #[case::order_of_values("a=2&b=0&a=1", &[("a", "2"), ("a", "1"), ("b", "0")])]
    #[case::plus_and_percent("a+b=%2B%20+", &[("a b", "+  ")])]
    #[case::encoded_separators("a=1%26b%3D2", &[("a", "1&b=2")])]
    #[case::no_value("a&b=", &[("a", ""), ("b", "")])]
    #[case::empty_pairs("&&a=1&", &[("a", "1")])]
    #[case::second_equals("a=b=c", &[("a", "b=c")])]
    #[case::broken_escape("a=%zz%4", &[("a", "%zz%4")])]
    #[case::nothing("", &[])]
    fn forms(#[case] body: &str, #[case] want: &[(&str, &str)]) {
        let want: Vec<Pair> = want
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        assert_eq!(pairs(body.as_bytes()), want);
    }
}
