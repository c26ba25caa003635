//! Which parts of a request are compared, where a route chooses them.
//!
//! An ignored part may differ between retries: a timestamp, a trace id. Where
//! parts of the body or of the query are included, its other parts are not
//! compared. The selection itself enters the fingerprint, so that fingerprints
//! under different selections are never equal.

use std::fmt;

use super::json;
use super::sorted_query;

/// The longest part in its written form, in bytes.
pub const PART_BYTES_MAX: usize = 1024;

/// Which parts of a request are compared. The default compares all of them, and
/// does not change the fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selection {
    /// Parts that are not compared. Headers are compared only where they are
    /// included, so a header here has no effect.
    pub ignore: Vec<Part>,
    /// Parts that are compared: only these of the body, if there are any, and only
    /// these of the query; headers in addition to everything else.
    pub include: Vec<Part>,
}

impl Selection {
    /// The default, as a constant.
    pub const EVERYTHING: &'static Self = &Self {
        ignore: Vec::new(),
        include: Vec::new(),
    };

    /// A selection of these parts.
    pub fn new(ignore: Vec<Part>, include: Vec<Part>) -> Self {
        Self { ignore, include }
    }

    /// Whether it is the default.
    pub fn is_everything(&self) -> bool {
        self.ignore.is_empty() && self.include.is_empty()
    }

    /// The headers that are compared, in lower case. Their values are
    /// passed in with the request.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        headers(&self.include)
    }

    /// The pairs of the query that are compared, by name.
    pub(super) fn of_query<'q>(&self, query: Option<&'q str>) -> Vec<&'q str> {
        let mut pairs = sorted_query(query);
        let is_among = |parts: &[Part], pair: &str| {
            let name = query_name(pair);
            queries(parts).any(|wanted| wanted.as_bytes() == name)
        };
        if queries(&self.ignore).next().is_some() {
            pairs.retain(|pair| !is_among(&self.ignore, pair));
        }
        if queries(&self.include).next().is_some() {
            pairs.retain(|pair| is_among(&self.include, pair));
        }
        pairs
    }

    /// The included parts of a canonical JSON text, or all of it, without the
    /// ignored ones.
    pub(super) fn of_json(&self, text: Vec<u8>) -> SelectedJson {
        let text = if bodies(&self.ignore).next().is_some() {
            let ignored: Vec<_> = bodies(&self.ignore).map(Pointer::tokens).collect();
            json::without(&text, &ignored)
        } else {
            text
        };
        if bodies(&self.include).next().is_none() {
            return SelectedJson::All(text);
        }
        let value = |pointer: &Pointer| pointer.value_in(&text).map(<[u8]>::to_vec);
        SelectedJson::Some(
            sorted(bodies(&self.include))
                .into_iter()
                .map(value)
                .collect(),
        )
    }

    /// The pairs of a form that are compared.
    pub(super) fn of_form(&self, mut pairs: Vec<super::form::Pair>) -> Vec<super::form::Pair> {
        let is_among = |parts: &[Part], name: &[u8]| {
            bodies(parts).any(|pointer| pointer.field() == Some(name))
        };
        if bodies(&self.ignore).next().is_some() {
            pairs.retain(|(name, _)| !is_among(&self.ignore, name));
        }
        if bodies(&self.include).next().is_some() {
            pairs.retain(|(name, _)| is_among(&self.include, name));
        }
        pairs
    }

    /// The parts in their written form, sorted: their order in a configuration does
    /// not matter.
    pub(super) fn written(parts: &[Part]) -> Vec<String> {
        sorted(parts.iter())
            .into_iter()
            .map(Part::to_string)
            .collect()
    }
}

/// The parts of a JSON text that a selection compares.
pub(super) enum SelectedJson {
    /// The text without its ignored parts.
    All(Vec<u8>),
    /// The value at each included place, if there is one.
    Some(Vec<Option<Vec<u8>>>),
}

fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}

fn bodies(parts: &[Part]) -> impl Iterator<Item = &Pointer> {
    parts.iter().filter_map(|part| match part {
        Part::Body(pointer) => Some(pointer),
        _ => None,
    })
}

fn queries(parts: &[Part]) -> impl Iterator<Item = &str> {
    parts.iter().filter_map(|part| match part {
        Part::Query(name) => Some(name.as_str()),
        _ => None,
    })
}

fn headers(parts: &[Part]) -> impl Iterator<Item = &str> {
    parts.iter().filter_map(|part| match part {
        Part::Header(name) => Some(name.as_str()),
        _ => None,
    })
}

/// The name of a pair of the query, decoded.
fn query_name(pair: &str) -> Vec<u8> {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    super::form::decode(name.as_bytes())
}

/// One part of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A place in a JSON body; in a form, `/name` is the field of that name.
    /// Bodies of other kinds have no parts: they are compared whole.
    Body(Pointer),
    /// All pairs of this name in the query, decoded.
    Query(String),
    /// All lines of this header; its name in lower case.
    Header(String),
}

impl Part {
    /// Parses `/a/b`, `query:name` or `header:Name`.
    ///
    /// ```
    /// use onceward_core::fingerprint::Part;
    ///
    /// assert!(Part::parse("/payment/sent_at").is_ok());
    /// assert!(Part::parse("query:trace").is_ok());
    /// assert!(Part::parse("header:X-Currency").is_ok());
    /// assert!(Part::parse("sent_at").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, PartError> {
        if text.len() > PART_BYTES_MAX {
            return Err(PartError::TooLong);
        }
        if text.is_empty() {
            return Err(PartError::Empty);
        }
        if text.starts_with('/') {
            return Pointer::parse(text).map(Self::Body);
        }
        match text.split_once(':') {
            Some(("query" | "header", "")) => Err(PartError::NoName(text.to_owned())),
            Some(("query", name)) => Ok(Self::Query(name.to_owned())),
            Some(("header", name)) if name.bytes().all(is_token) => {
                Ok(Self::Header(name.to_ascii_lowercase()))
            }
            Some(("header", name)) => Err(PartError::HeaderName(name.to_owned())),
            _ => Err(PartError::Kind(text.to_owned())),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(pointer) => pointer.fmt(f),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

/// Whether a byte may stand in a header's name (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Why a text names no part of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// Nothing.
    #[error("a part of a request is /a/b, query:name or header:Name, and this is empty")]
    Empty,
    /// None of the three forms.
    #[error("{0:?} names no part of a request; write /a/b, query:name or header:Name")]
    Kind(String),
    /// `query:` or `header:` alone.
    #[error("{0:?} lacks its name; write {0}name")]
    NoName(String),
    /// Not a valid header name.
    #[error("no header can be called {0:?}")]
    HeaderName(String),
    /// A tilde that begins no escape.
    #[error("{0:?} is no JSON Pointer: after `~` comes 0 (for `~`) or 1 (for `/`)")]
    Escape(String),
    /// Beyond [`PART_BYTES_MAX`].
    #[error("a part of a request is at most {PART_BYTES_MAX} bytes long")]
    TooLong,
}

/// A JSON Pointer (RFC 6901) to something within a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer(Vec<String>);

impl Pointer {
    /// Parses `/a/b`; `~1` stands for `/` and `~0` for `~`.
    pub fn parse(text: &str) -> Result<Self, PartError> {
        let rest = text
            .strip_prefix('/')
            .ok_or_else(|| PartError::Kind(text.to_owned()))?;
        let escape = || PartError::Escape(text.to_owned());
        rest.split('/')
            .map(|token| unescape(token).ok_or_else(escape))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The value at this place in a text that
    /// [`canonical_json`](super::canonical_json) wrote, in the same form.
    pub fn value_in<'a>(&self, canonical: &'a [u8]) -> Option<&'a [u8]> {
        json::value_at(canonical, &self.0)
    }

    fn tokens(&self) -> &[String] {
        &self.0
    }

    /// The field of a form that it names.
    fn field(&self) -> Option<&[u8]> {
        match self.0.as_slice() {
            [name] => Some(name.as_bytes()),
            _ => None,
        }
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut pieces = token.split('~');
    let mut text = pieces.next()?.to_owned();
    for piece in pieces {
        let rest = match piece.split_at_checked(1)? {
            ("0", rest) => {
                text.push('~');
                rest
            }
            ("1", rest) => {
                text.push('/');
                rest
            }
            _ => return None,
        };
        text.push_str(rest);
    }
    Some(text)
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.0 {
            write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;

    use super::super::canonical_json;
    use super::*;

    #[rstest]
    #[case::place("/a/b", "/a/b")]
    #[case::empty_name("/", "/")]
    #[case::escapes("/a~1b/~0", "/a~1b/~0")]
    #[case::tilde_before_a_digit("/~01", "/~01")]
    #[case::text_beyond_ascii("/é/😀", "/é/😀")]
    #[case::query("query:a b", "query:a b")]
    #[case::query_with_a_colon("query:a:b", "query:a:b")]
    #[case::header("header:X-Currency", "header:x-currency")]
    fn parts(#[case] text: &str, #[case] want: &str) {
        assert_eq!(
            Part::parse(text).map(|part| part.to_string()).as_deref(),
            Ok(want)
        );
    }

    #[rstest]
    #[case::nothing("", "this is empty")]
    #[case::bare_name("amount", "write /a/b, query:name or header:Name")]
    #[case::other_kind("cookie:a", "write /a/b, query:name or header:Name")]
    #[case::no_name("query:", "write query:name")]
    #[case::no_header("header:", "write header:name")]
    #[case::bad_header("header:a b", "no header can be called \"a b\"")]
    #[case::bad_escape("/a~2", "after `~` comes 0")]
    #[case::open_escape("/a~", "after `~` comes 0")]
    #[case::umlaut_after_tilde("/~ä", "after `~` comes 0")]
    fn malformed_parts_are_refused(#[case] text: &str, #[case] words: &str) {
        let error = Part::parse(text).expect_err("no part");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn parts_are_bounded() {
        let part = |length: usize| Part::parse(&format!("/{}", "a".repeat(length - 1)));
        assert!(part(PART_BYTES_MAX).is_ok());
        assert_eq!(part(PART_BYTES_MAX + 1), Err(PartError::TooLong));
    }

    const RFC: &str = r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;

    // RFC 6901, 5.
    #[rstest]
    #[case("/foo", Some(r#"["bar","baz"]"#))]
    #[case("/foo/0", Some("\"bar\""))]
    #[case("/foo/1", Some("\"baz\""))]
    #[case("/foo/2", None)]
    #[case("/foo/00", None)]
    #[case("/foo/-", None)]
    #[case("/foo/0/0", None)]
    #[case("/", Some("0"))]
    #[case("/a~1b", Some("1"))]
    #[case("/c%d", Some("2"))]
    #[case("/e^f", Some("3"))]
    #[case("/g|h", Some("4"))]
    #[case("/i\\j", Some("5"))]
    #[case("/k\"l", Some("6"))]
    #[case("/ ", Some("7"))]
    #[case("/m~0n", Some("8"))]
    #[case("/absent", None)]
    fn pointers(#[case] pointer: &str, #[case] want: Option<&str>) {
        let canonical = canonical_json(RFC.as_bytes()).expect("JSON");
        let pointer = Pointer::parse(pointer).expect("a pointer");
        assert_eq!(pointer.value_in(&canonical), want.map(str::as_bytes));
    }

    #[rstest]
    #[case::member(r#"{"a":1,"b":2,"c":3}"#, &["/b"], r#"{"a":1,"c":3}"#)]
    #[case::first_member(r#"{"a":1,"b":2}"#, &["/a"], r#"{"b":2}"#)]
    #[case::last_member(r#"{"a":1,"b":2}"#, &["/b"], r#"{"a":1}"#)]
    #[case::only_member(r#"{"a":1}"#, &["/a"], "{}")]
    #[case::nested(r#"{"a":{"b":1,"c":2},"d":3}"#, &["/a/b"], r#"{"a":{"c":2},"d":3}"#)]
    #[case::two(r#"{"a":{"b":1,"c":2},"d":3}"#, &["/a/b", "/d"], r#"{"a":{"c":2}}"#)]
    #[case::one_within_the_other(r#"{"a":{"b":1},"d":3}"#, &["/a/b", "/a"], r#"{"d":3}"#)]
    #[case::element("[1,2,3]", &["/1"], "[1,3]")]
    #[case::within_an_element(r#"[{"a":1,"b":2},{"a":3}]"#, &["/0/a"], r#"[{"b":2},{"a":3}]"#)]
    #[case::absent(r#"{"a":1}"#, &["/b", "/a/b", "/a/0"], r#"{"a":1}"#)]
    #[case::scalar("1", &["/a"], "1")]
    #[case::escaped_name(r#"{"a\"b":1,"c":2}"#, &["/a\"b"], r#"{"c":2}"#)]
    #[case::strings_that_look_like_syntax(r#"{"a":"}],{\"b\":1","b":2}"#, &["/b"], r#"{"a":"}],{\"b\":1"}"#)]
    fn ignoring(#[case] text: &str, #[case] ignore: &[&str], #[case] want: &str) {
        let selection = Selection {
            ignore: ignore
                .iter()
                .map(|part| Part::parse(part).expect("a part"))
                .collect(),
            include: Vec::new(),
        };
        let canonical = canonical_json(text.as_bytes()).expect("JSON");
        let SelectedJson::All(left) = selection.of_json(canonical) else {
            panic!("nothing was included");
        };
        assert_eq!(String::from_utf8(left).as_deref(), Ok(want));
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<u32>().prop_map(Value::from),
            "[\"\\\\/{}a,:\\[\\]]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map("[a-c~/\"\\\\0-1]{0,2}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// `serde_json` reads pointers too, and is the judge.
        #[test]
        fn pointers_agree_with_serde_json(
            document in document(),
            text in "(/([a-c0-1\"\\\\]|~0|~1){0,2}){1,3}",
        ) {
            let canonical = canonical_json(document.to_string().as_bytes()).expect("JSON");
            let pointer = Pointer::parse(&text).expect("a pointer");
            let got = pointer.value_in(&canonical);
            let want = document.pointer(&text);
            let want = want.and_then(|value| canonical_json(value.to_string().as_bytes()));
            prop_assert_eq!(got.map(<[u8]>::to_vec), want);
            prop_assert_eq!(pointer.to_string(), text);
        }

        #[test]
        fn ignored_members_are_removed_and_others_stay(
            document in document(),
            text in "(/([a-c0-1\"\\\\]|~0|~1){0,2}){1,3}",
        ) {
            let canonical = canonical_json(document.to_string().as_bytes()).expect("JSON");
            let selection = Selection {
                ignore: vec![Part::parse(&text).expect("a part")],
                include: Vec::new(),
            };
            let SelectedJson::All(left) = selection.of_json(canonical.clone()) else {
                panic!("nothing was included");
            };
            let mut want: Value = document.clone();
            let (parent, name) = text.rsplit_once('/').expect("a slash");
            let name = name.replace("~1", "/").replace("~0", "~");
            match want.pointer_mut(parent) {
                Some(Value::Object(members)) => { members.remove(&name); }
                Some(Value::Array(items)) => {
                    let plain = name == "0" || !name.starts_with('0');
                    if let Some(at) = name.parse().ok().filter(|at| plain && *at < items.len()) {
                        items.remove(at);
                    }
                }
                _ => {}
            }
            prop_assert_eq!(Some(left.clone()), canonical_json(want.to_string().as_bytes()));
            prop_assert_eq!(canonical_json(&left), Some(left), "canonical still");
        }
    }
}
