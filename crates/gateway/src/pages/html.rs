//! The pages as HTML: without scripts, with one embedded style sheet, for light and
//! dark colour schemes and for small screens.

use std::fmt;

use askama::Template;
use bytes::Bytes;
use data_encoding::BASE64;
use http::HeaderValue;
use onceward_core::class::{InFlight, OnError};
use onceward_http::problem::WELL_KNOWN;
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html::push_html};
use sha2::{Digest as _, Sha256};

use super::PROBLEMS;
use super::article::{Article, ProblemHead, ProblemSummary};
use super::policy::{PolicyDocument, Terms};
use crate::config::Policy;

const STYLE: &str = include_str!("templates/style.css");

/// The `Content-Security-Policy`: allows the embedded style sheet and nothing else.
pub(super) fn content_security() -> HeaderValue {
    let digest = BASE64.encode(&Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("base64 is visible ASCII")
}

/// What all pages have in common.
struct Frame<'a> {
    style: &'static str,
    policy_url: SiteUrl<'a>,
    problems_url: SiteUrl<'a>,
}

impl<'a> Frame<'a> {
    fn new(site: &'a str) -> Self {
        Self {
            style: STYLE,
            policy_url: SiteUrl(site, WELL_KNOWN),
            problems_url: SiteUrl(site, PROBLEMS),
        }
    }
}

/// The URL of a path on this site.
struct SiteUrl<'a>(&'a str, &'static str);

impl fmt::Display for SiteUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

#[derive(Template)]
#[template(path = "policy.html", config = "src/pages/askama.toml")]
struct PolicyPage<'a> {
    frame: Frame<'a>,
    document: &'a PolicyDocument,
}

#[derive(Template)]
#[template(path = "problems.html", config = "src/pages/askama.toml")]
struct ProblemsPage<'a> {
    frame: Frame<'a>,
    problems: Vec<ProblemSummary>,
}

#[derive(Template)]
#[template(path = "problem.html", config = "src/pages/askama.toml")]
struct ProblemPage<'a> {
    frame: Frame<'a>,
    code: &'static str,
    head: ProblemHead<'static>,
    body: String,
}

/// The policy of every route.
pub(super) fn policy(document: &PolicyDocument, site: &str) -> Bytes {
    render(&PolicyPage {
        frame: Frame::new(site),
        document,
    })
}

/// All problems.
pub(super) fn problems(site: &str) -> Bytes {
    render(&ProblemsPage {
        frame: Frame::new(site),
        problems: Article::all()
            .map(|article| article.summary(site))
            .collect(),
    })
}

/// One problem.
pub(super) fn problem(article: Article, site: &str) -> Bytes {
    let head = article.head();
    render(&ProblemPage {
        frame: Frame::new(site),
        code: article.code().as_str(),
        head,
        body: body(head.rest, site),
    })
}

fn render(template: &impl Template) -> Bytes {
    let page = template.render();
    page.expect("writing to a string does not fail").into()
}

/// Renders a page's Markdown. The code of a problem becomes a link to its page.
fn body(markdown: &str, site: &str) -> String {
    let events = Parser::new_ext(markdown, Options::ENABLE_TABLES).flat_map(|event| {
        let link = match &event {
            Event::Code(word) => link(word, site),
            _ => None,
        };
        let (open, close) = link.unzip();
        [open, Some(event), close].into_iter().flatten()
    });
    let mut html = String::new();
    push_html(&mut html, events);
    // A table that is too wide for the screen scrolls by itself.
    html.replace("<table>", "<div class=\"wide\"><table>")
        .replace("</table>", "</table></div>")
}

/// The start and the end of a link, if the word is the code of a problem.
fn link<'a>(word: &str, site: &str) -> Option<(Event<'a>, Event<'a>)> {
    let article = Article::find(word)?;
    let tag = Tag::Link {
        link_type: pulldown_cmark::LinkType::Inline,
        dest_url: article.summary(site).url.into(),
        title: CowStr::Borrowed(""),
        id: CowStr::Borrowed(""),
    };
    Some((Event::Start(tag), Event::End(TagEnd::Link)))
}

/// What a policy means for a client.
fn meaning(policy: Option<Policy>) -> &'static str {
    match policy {
        Some(Policy::RequiredA) => "An Idempotency-Key is required.",
        Some(Policy::RequiredB) => "The key is taken from the provider's event.",
        Some(Policy::Accepted) => {
            "With an Idempotency-Key the request is protected; without one it is forwarded unprotected."
        }
        Some(Policy::Prohibited) => "No Idempotency-Key may be sent.",
        Some(Policy::HandlerInternalC) => {
            "The service handles idempotency itself; the gateway ignores an Idempotency-Key."
        }
        None => "Forwarded unprotected.",
    }
}

/// What a duplicate gets while the first request runs.
fn meanwhile(terms: &Terms) -> String {
    match terms.in_flight {
        InFlight::Wait => format!("a duplicate waits, for up to {}", time(terms.wait_seconds)),
        InFlight::Accept => "a duplicate gets 202 and the URL of the operation".to_owned(),
        // `reject`, which is also the safe assumption for a newer variant.
        _ => "a duplicate is refused with 409".to_owned(),
    }
}

/// What a retry gets after a server error.
fn after_error(terms: &Terms) -> &'static str {
    match terms.on_error {
        OnError::Release => "a retry runs again",
        OnError::Keep => "a retry gets the same error",
        // `unknown`, which is also the safe assumption for a newer variant.
        _ => "a retry gets 409: it is not known whether it ran",
    }
}

/// A duration in the largest unit that divides it.
fn time(seconds: u64) -> String {
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute")];
    let unit = units
        .into_iter()
        .find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "second"));
    match seconds / unit {
        1 => format!("1 {name}"),
        many => format!("{many} {name}s"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "0 seconds")]
    #[case(1, "1 second")]
    #[case(90, "90 seconds")]
    #[case(120, "2 minutes")]
    #[case(3_600, "1 hour")]
    #[case(86_400, "1 day")]
    #[case(90_000, "25 hours")]
    #[case(604_800, "7 days")]
    fn times(#[case] seconds: u64, #[case] want: &str) {
        assert_eq!(time(seconds), want);
    }

    #[test]
    fn the_code_of_a_problem_is_a_link_and_other_code_is_not() {
        assert_eq!(
            body("See `key-reused` or `<b>`.", "https://a.example"),
            "<p>See <a href=\"https://a.example/.well-known/idempotency/problems/key-reused\">\
             <code>key-reused</code></a> or <code>&lt;b&gt;</code>.</p>\n"
        );
    }
}
