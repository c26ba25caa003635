//! Content negotiation: the form of a page that a client prefers (RFC 9110, 12.5.1).
//!
//! A browser prefers `text/html`; a program names a media type, or accepts anything
//! and gets the first form. No client is refused: one that accepts none of the
//! forms gets the first one too.

use http::HeaderValue;

/// The forms of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// For programs.
    Json,
    /// For browsers.
    Html,
    /// For people without a browser.
    Markdown,
}

impl Form {
    fn media(self) -> (&'static str, &'static str) {
        match self {
            Self::Json => ("application", "json"),
            Self::Html => ("text", "html"),
            Self::Markdown => ("text", "markdown"),
        }
    }

    pub(super) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => "application/json",
            Self::Html => "text/html; charset=utf-8",
            Self::Markdown => "text/markdown; charset=utf-8",
        })
    }
}

/// How much a client prefers a form: by its weight (`q`), then by how exactly the
/// range names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    thousandths: u16,
    exactness: u8,
}

/// The form that the `Accept` headers prefer; among equals, the first.
pub(super) fn choose_form(accept: &[&[u8]], forms: &[Form]) -> Form {
    let mut best = (forms[0], None);
    for form in forms {
        let preference = preference(accept, *form);
        if preference > best.1 {
            best = (*form, preference);
        }
    }
    best.0
}

/// The preference of the most exact range that includes the form; `None` if the form
/// is not accepted.
fn preference(accept: &[&[u8]], form: Form) -> Option<Preference> {
    accept
        .iter()
        .filter_map(|line| std::str::from_utf8(line).ok())
        .flat_map(|line| line.split(','))
        .filter_map(|range| range_preference(range, form))
        .max_by_key(|preference| preference.exactness)
        .filter(|preference| preference.thousandths > 0)
}

/// The preference of one media range; `None` if it does not include the form.
fn range_preference(range: &str, form: Form) -> Option<Preference> {
    let mut pieces = range.split(';').map(str::trim);
    let (kind, subkind) = pieces.next()?.split_once('/')?;
    let media = form.media();
    let exactness = match (kind, subkind) {
        ("*", "*") => 0,
        (kind, "*") if kind.eq_ignore_ascii_case(media.0) => 1,
        (kind, subkind)
            if kind.eq_ignore_ascii_case(media.0) && subkind.eq_ignore_ascii_case(media.1) =>
        {
            2
        }
        _ => return None,
    };
    let weight = pieces.find_map(|piece| {
        let (name, value) = piece.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let thousandths = match weight.map(str::parse::<f32>) {
        None => 1000,
        Some(Ok(weight @ 0.0..=1.0)) => (weight * 1000.0) as u16,
        // A malformed weight counts as 0.
        Some(_) => 0,
    };
    Some(Preference {
        thousandths,
        exactness,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const POLICY: &[Form] = &[Form::Json, Form::Html];
    const PROBLEM: &[Form] = &[Form::Markdown, Form::Html, Form::Json];
    const FIREFOX: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

    #[rstest]
    #[case::empty("", Form::Json, Form::Markdown)]
    #[case::curl("*/*", Form::Json, Form::Markdown)]
    #[case::browser(FIREFOX, Form::Html, Form::Html)]
    #[case::program("application/json", Form::Json, Form::Json)]
    #[case::problem_program("application/problem+json, application/json", Form::Json, Form::Json)]
    #[case::axios("application/json, text/plain, */*", Form::Json, Form::Json)]
    #[case::any_text("text/*", Form::Html, Form::Markdown)]
    #[case::markdown("text/markdown", Form::Json, Form::Markdown)]
    #[case::weighed("text/html;q=0.5, application/json;q=0.6", Form::Json, Form::Json)]
    #[case::weighed_the_other_way(
        "text/html;q=0.7, application/json;q=0.6",
        Form::Html,
        Form::Html
    )]
    #[case::equal_weights("text/html, application/json", Form::Json, Form::Html)]
    #[case::exact_beats_wide("text/html;q=0, */*", Form::Json, Form::Markdown)]
    #[case::anything_but("application/json;q=0, text/markdown;q=0, */*", Form::Html, Form::Html)]
    #[case::capitals("TEXT/HTML ; Q=1", Form::Html, Form::Html)]
    #[case::no_such_form("image/png", Form::Json, Form::Markdown)]
    #[case::rubbish("text/html;q=much, ;;,/,", Form::Json, Form::Markdown)]
    fn the_preferred_form_is_chosen(
        #[case] accept: &str,
        #[case] policy: Form,
        #[case] problem: Form,
    ) {
        let lines = [accept.as_bytes()];
        assert_eq!(choose_form(&lines, POLICY), policy, "policy page");
        assert_eq!(choose_form(&lines, PROBLEM), problem, "problem page");
    }

    #[test]
    fn several_headers_are_one_list() {
        let lines: [&[u8]; 2] = [b"application/json;q=0.1", b"text/html"];
        assert_eq!(choose_form(&lines, POLICY), Form::Html);
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_available_form(line in any::<Vec<u8>>()) {
            prop_assert!(POLICY.contains(&choose_form(&[&line], POLICY)));
        }
    }
}
