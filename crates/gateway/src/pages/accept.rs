//! Which form of a page a client likes best (RFC 9110, 12.5.1).
//!
//! A browser names `text/html` before all else; a program names what it can
//! read, or takes anything and gets the first form. Nobody is refused: a client
//! that likes none of the forms gets the first one too.

use http::HeaderValue;

/// How a page can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// For programs.
    Json,
    /// For people with a browser.
    Html,
    /// For people without one.
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

/// How much a form is liked: by weight, then by how exactly it was named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Liking {
    thousandths: u16,
    exactness: u8,
}

/// The form of these that the lines of `Accept` like best; of several, the first.
pub(super) fn preferred(accept: &[&[u8]], forms: &[Form]) -> Form {
    let mut best = (forms[0], None);
    for form in forms {
        let liking = liking(accept, *form);
        if liking > best.1 {
            best = (*form, liking);
        }
    }
    best.0
}

/// The most exact range that holds the form counts; `None` where it is not wanted.
fn liking(accept: &[&[u8]], form: Form) -> Option<Liking> {
    accept
        .iter()
        .filter_map(|line| std::str::from_utf8(line).ok())
        .flat_map(|line| line.split(','))
        .filter_map(|range| judge(range, form))
        .max_by_key(|liking| liking.exactness)
        .filter(|liking| liking.thousandths > 0)
}

fn judge(range: &str, form: Form) -> Option<Liking> {
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
        // A weight that is none weighs nothing.
        Some(_) => 0,
    };
    Some(Liking {
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
    #[case::nothing_said("", Form::Json, Form::Markdown)]
    #[case::curl("*/*", Form::Json, Form::Markdown)]
    #[case::browser(FIREFOX, Form::Html, Form::Html)]
    #[case::program("application/json", Form::Json, Form::Json)]
    #[case::problem_program("application/problem+json, application/json", Form::Json, Form::Json)]
    #[case::axios("application/json, text/plain, */*", Form::Json, Form::Json)]
    #[case::any_text("text/*", Form::Html, Form::Markdown)]
    #[case::markdown("text/markdown", Form::Json, Form::Markdown)]
    #[case::weighed("text/html;q=0.5, application/json;q=0.6", Form::Json, Form::Json)]
    #[case::weighed_back("text/html;q=0.7, application/json;q=0.6", Form::Html, Form::Html)]
    #[case::all_alike("text/html, application/json", Form::Json, Form::Html)]
    #[case::exact_beats_wide("text/html;q=0, */*", Form::Json, Form::Markdown)]
    #[case::anything_but("application/json;q=0, text/markdown;q=0, */*", Form::Html, Form::Html)]
    #[case::capitals("TEXT/HTML ; Q=1", Form::Html, Form::Html)]
    #[case::nothing_we_have("image/png", Form::Json, Form::Markdown)]
    #[case::rubbish("text/html;q=much, ;;,/,", Form::Json, Form::Markdown)]
    fn likings(#[case] accept: &str, #[case] policy: Form, #[case] problem: Form) {
        let lines = [accept.as_bytes()];
        assert_eq!(preferred(&lines, POLICY), policy, "of the policy");
        assert_eq!(preferred(&lines, PROBLEM), problem, "of a problem");
    }

    #[test]
    fn several_lines_are_one_list() {
        let lines: [&[u8]; 2] = [b"application/json;q=0.1", b"text/html"];
        assert_eq!(preferred(&lines, POLICY), Form::Html);
    }

    proptest! {
        #[test]
        fn any_bytes_get_a_form_that_there_is(line in any::<Vec<u8>>()) {
            prop_assert!(POLICY.contains(&preferred(&[&line], POLICY)));
        }
    }
}
