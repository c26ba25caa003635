//! Multipart bodies by their parts, without the boundary between them.
//!
//! Strict on purpose: a body with bytes outside its parts, or that could be read in
//! two ways, is compared byte for byte instead.

use memchr::memmem;

/// The longest boundary (RFC 2046, 5.1.1).
const BOUNDARY_BYTES_MAX: usize = 70;

/// One part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BodyPart<'a> {
    /// In the order of their names, which are in lower case.
    pub(super) headers: Vec<(Vec<u8>, &'a [u8])>,
    /// The content.
    pub(super) body: &'a [u8],
}

/// The parts in their order; `None` for a body that is not well formed.
pub(super) fn parts<'a>(body: &'a [u8], boundary: &[u8]) -> Option<Vec<BodyPart<'a>>> {
    if boundary.is_empty() || boundary.len() > BOUNDARY_BYTES_MAX {
        return None;
    }
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // The first delimiter opens the body, so nothing ends before it.
    let mut rest = body.strip_prefix(delimiter.strip_prefix(b"\r\n")?)?;
    let mut parts = Vec::new();
    loop {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            let whole = epilogue.trim_ascii().is_empty() && !parts.is_empty();
            return whole.then_some(parts);
        }
        rest = after_padding(rest).strip_prefix(b"\r\n")?;
        let end = finder.find(rest)?;
        parts.push(part(&rest[..end])?);
        rest = &rest[end + delimiter.len()..];
    }
}

fn after_padding(text: &[u8]) -> &[u8] {
    let padding = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'));
    &text[padding.count()..]
}

fn part(text: &[u8]) -> Option<BodyPart<'_>> {
    if let Some(body) = text.strip_prefix(b"\r\n") {
        return Some(BodyPart {
            headers: Vec::new(),
            body,
        });
    }
    let end = memmem::find(text, b"\r\n\r\n")?;
    Some(BodyPart {
        headers: headers(&text[..end])?,
        body: &text[end + 4..],
    })
}

fn headers(text: &[u8]) -> Option<Vec<(Vec<u8>, &[u8])>> {
    let mut headers = Vec::new();
    let mut rest = text;
    loop {
        let end = memmem::find(rest, b"\r\n");
        headers.push(header(&rest[..end.unwrap_or(rest.len())])?);
        match end {
            Some(end) => rest = &rest[end + 2..],
            None => break,
        }
    }
    headers.sort_by(|(a, _): &(Vec<u8>, _), (b, _)| a.cmp(b));
    Some(headers)
}

/// A folded line has no name of its own, and so is refused.
fn header(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    let name = &line[..colon];
    let is_name = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
    is_name.then(|| (name.to_ascii_lowercase(), line[colon + 1..].trim_ascii()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn shown(body: &str) -> Option<Vec<String>> {
        let parts = parts(body.as_bytes(), b"B")?;
        let show = |part: &BodyPart<'_>| {
            let headers: Vec<_> = part
                .headers
                .iter()
                .map(|(name, value)| [name.as_slice(), value].join(&b'='))
                .collect();
            let text = [headers.join(&b','), part.body.to_vec()].join(&b'|');
            String::from_utf8(text).expect("the cases are text")
        };
        Some(parts.iter().map(show).collect())
    }

    #[rstest]
    #[case::one("--B\r\nA: 1\r\n\r\nx\r\n--B--\r\n", &["a=1|x"])]
    #[case::no_end_of_line("--B\r\nA: 1\r\n\r\nx\r\n--B--", &["a=1|x"])]
    #[case::sorted_headers("--B\r\nb: 2\r\nA: 1\r\n\r\nx\r\n--B--", &["a=1,b=2|x"])]
    #[case::two("--B\r\na:1\r\n\r\nx\r\n--B\r\na:2\r\n\r\ny\r\n--B--", &["a=1|x", "a=2|y"])]
    #[case::no_headers("--B\r\n\r\nx\r\n--B--", &["|x"])]
    #[case::empty_content("--B\r\na:1\r\n\r\n\r\n--B--", &["a=1|"])]
    #[case::padding("--B \t\r\n\r\nx\r\n--B  \r\n\r\ny\r\n--B--", &["|x", "|y"])]
    #[case::lines_within("--B\r\n\r\nx\r\n\r\n--b\r\n\r\n--B--", &["|x\r\n\r\n--b\r\n"])]
    fn well_formed(#[case] body: &str, #[case] want: &[&str]) {
        assert_eq!(
            shown(body),
            Some(want.iter().map(|part| (*part).to_owned()).collect())
        );
    }

    #[rstest]
    #[case::empty("")]
    #[case::no_parts("--B--")]
    #[case::preamble("hello\r\n--B\r\n\r\nx\r\n--B--")]
    #[case::epilogue("--B\r\n\r\nx\r\n--B--\r\nhello")]
    #[case::never_closed("--B\r\n\r\nx")]
    #[case::longer_boundary("--BC\r\n\r\nx\r\n--BC--")]
    #[case::boundary_within("--B\r\n\r\nx\r\n--BC\r\n--B--")]
    #[case::no_blank_line("--B\r\na: 1\r\n--B--")]
    #[case::no_colon("--B\r\na\r\n\r\nx\r\n--B--")]
    #[case::folded("--B\r\na: 1\r\n 2\r\n\r\nx\r\n--B--")]
    #[case::bare_line_feeds("--B\na: 1\n\nx\n--B--")]
    fn malformed(#[case] body: &str) {
        assert_eq!(shown(body), None);
    }

    #[test]
    fn boundary_is_bounded_at_70() {
        for (length, want) in [(0, false), (1, true), (70, true), (71, false)] {
            let boundary = "B".repeat(length);
            let body = format!("--{boundary}\r\n\r\nx\r\n--{boundary}--");
            assert_eq!(
                parts(body.as_bytes(), boundary.as_bytes()).is_some(),
                want,
                "{length}"
            );
        }
    }
}
