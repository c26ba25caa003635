//! The `Content-Type` as far as it is compared: the media type in lower case
//! and the parameters in the order of their names, a charset in lower case. The
//! boundary is drawn anew for every request, so it is set apart.
//!
//! Lenient on purpose: a malformed type is still compared, and chooses nothing.

/// How a body is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Form,
    Multipart,
    Other,
}

/// A name in lower case and its value without quotes.
pub(super) type Parameter = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
pub(super) struct ContentType {
    media_type: Vec<u8>,
    parameters: Vec<Parameter>,
    boundary: Option<Vec<u8>>,
}

impl ContentType {
    pub(super) fn parse(text: &[u8]) -> Self {
        let (media_type, mut rest) = cut(text, b';');
        let mut parameters = Vec::new();
        let mut boundary = None;
        while !rest.is_empty() {
            let (name, mut value, after) = parameter(rest);
            rest = after;
            if name == b"charset" {
                // RFC 9110, 8.3.2.
                value.make_ascii_lowercase();
            }
            if name == b"boundary" {
                boundary = boundary.or(Some(value));
            } else if !name.is_empty() {
                parameters.push((name, value));
            }
        }
        parameters.sort();
        Self {
            media_type: media_type.trim_ascii().to_ascii_lowercase(),
            parameters,
            boundary,
        }
    }

    pub(super) fn media_type(&self) -> &[u8] {
        &self.media_type
    }

    /// In the order of their names, without the boundary.
    pub(super) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    pub(super) fn boundary(&self) -> Option<&[u8]> {
        self.boundary.as_deref()
    }

    pub(super) fn media(&self) -> Media {
        match self.media_type.as_slice() {
            b"application/json" => Media::Json,
            b"application/x-www-form-urlencoded" => Media::Form,
            other if other.ends_with(b"+json") => Media::Json,
            other if other.starts_with(b"multipart/") => Media::Multipart,
            _ => Media::Other,
        }
    }
}

/// One parameter and what follows it. A semicolon within quotes is text.
fn parameter(text: &[u8]) -> (Vec<u8>, Vec<u8>, &[u8]) {
    let name_end = text.iter().position(|byte| matches!(byte, b'=' | b';'));
    let name_end = name_end.unwrap_or(text.len());
    let (name, rest) = text.split_at(name_end);
    let name = name.trim_ascii().to_ascii_lowercase();
    let Some(value) = rest.strip_prefix(b"=") else {
        return (name, Vec::new(), rest.strip_prefix(b";").unwrap_or(rest));
    };
    match value.trim_ascii_start().strip_prefix(b"\"") {
        Some(quoted) => {
            let (value, rest) = unquote(quoted);
            (name, value, cut(rest, b';').1)
        }
        None => {
            let (value, rest) = cut(value, b';');
            (name, value.trim_ascii().to_vec(), rest)
        }
    }
}

/// The text up to the closing quote, escapes undone, and what follows.
fn unquote(quoted: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut value = Vec::new();
    let mut rest = quoted;
    loop {
        match rest {
            [] => return (value, rest),
            [b'"', after @ ..] => return (value, after),
            [b'\\', escaped, after @ ..] => {
                value.push(*escaped);
                rest = after;
            }
            [byte, after @ ..] => {
                value.push(*byte);
                rest = after;
            }
        }
    }
}

/// The bytes before the first such byte, and those after it.
fn cut(text: &[u8], byte: u8) -> (&[u8], &[u8]) {
    match memchr::memchr(byte, text) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("application/json", "application/json", Media::Json, "", None)]
    #[case::case("Application/JSON ", "application/json", Media::Json, "", None)]
    #[case::suffix(
        "application/vnd.api+json",
        "application/vnd.api+json",
        Media::Json,
        "",
        None
    )]
    #[case::problem(
        "application/problem+json;a=b",
        "application/problem+json",
        Media::Json,
        "a=b",
        None
    )]
    #[case::not_json("application/jsonl", "application/jsonl", Media::Other, "", None)]
    #[case::form(
        "application/x-www-form-urlencoded; charset=UTF-8",
        "application/x-www-form-urlencoded",
        Media::Form,
        "charset=utf-8",
        None
    )]
    #[case::charset_in_quotes("a/b; Charset=\"UTF-8\"", "a/b", Media::Other, "charset=utf-8", None)]
    #[case::case_of_another_value("a/b; profile=A", "a/b", Media::Other, "profile=A", None)]
    #[case::order("text/plain; B=2 ;a=1", "text/plain", Media::Other, "a=1 b=2", None)]
    #[case::quotes(
        "text/plain; a=\"x;\\\"y\" ; b=2",
        "text/plain",
        Media::Other,
        "a=x;\"y b=2",
        None
    )]
    #[case::boundary(
        "multipart/form-data; boundary=xyz",
        "multipart/form-data",
        Media::Multipart,
        "",
        Some("xyz")
    )]
    #[case::quoted_boundary(
        "multipart/mixed; Boundary=\"x y\"; a=1",
        "multipart/mixed",
        Media::Multipart,
        "a=1",
        Some("x y")
    )]
    #[case::no_value("a/b; x; y=1;", "a/b", Media::Other, "x= y=1", None)]
    #[case::open_quote("a/b; x=\"1", "a/b", Media::Other, "x=1", None)]
    #[case::empty("", "", Media::Other, "", None)]
    fn content_types(
        #[case] text: &str,
        #[case] media_type: &str,
        #[case] media: Media,
        #[case] parameters: &str,
        #[case] boundary: Option<&str>,
    ) {
        let got = ContentType::parse(text.as_bytes());
        let shown: Vec<_> = got
            .parameters()
            .iter()
            .map(|(name, value)| [name.as_slice(), value].join(&b'='))
            .collect();
        assert_eq!(got.media_type(), media_type.as_bytes());
        assert_eq!(got.media(), media);
        assert_eq!(
            String::from_utf8(shown.join(&b' ')).as_deref(),
            Ok(parameters)
        );
        assert_eq!(got.boundary(), boundary.map(str::as_bytes));
    }
}
