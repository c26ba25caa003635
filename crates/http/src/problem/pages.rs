//! The page of each problem, as Markdown. The files are those of
//! `docs/problems/`, linked into this crate so that it can be published with
//! them.

use std::fmt::Write as _;

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, VARY};
use http::{HeaderMap, Response};

use super::Code;
use crate::body::{self, Body};

/// How long a page may be cached.
const FRESH: HeaderValue = HeaderValue::from_static("max-age=3600");

impl Code {
    /// The code with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == name)
    }

    /// The page about this code, as Markdown.
    pub fn page(self) -> &'static str {
        macro_rules! file {
            ($name:literal) => {
                include_str!(concat!("../../problems/", $name, ".md"))
            };
        }
        match self {
            Self::InProgress => file!("in-progress"),
            Self::KeyReused => file!("key-reused"),
            Self::KeyMissing => file!("key-missing"),
            Self::KeyInvalid => file!("key-invalid"),
            Self::KeyProhibited => file!("key-prohibited"),
            Self::OutcomeUnknown => file!("outcome-unknown"),
            Self::UpstreamUnreachable => file!("upstream-unreachable"),
            Self::Paused => file!("paused"),
            Self::ReplyNotKept => file!("reply-not-kept"),
            Self::ReplyExpired => file!("reply-expired"),
            Self::StoreUnavailable => file!("store-unavailable"),
            Self::NoOperation => file!("no-operation"),
            Self::MethodNotAllowed => file!("method-not-allowed"),
            Self::BodyTooLarge => file!("body-too-large"),
            Self::TranslationFailed => file!("translation-failed"),
            Self::Unauthenticated => file!("unauthenticated"),
            Self::Forbidden => file!("forbidden"),
            Self::NoRoute => file!("no-route"),
            Self::TooManyRequests => file!("too-many-requests"),
            Self::AuthUnavailable => file!("auth-unavailable"),
            Self::BadRequest => file!("bad-request"),
        }
    }
}

/// The page at `rest`, which is the part of a path below the pages' own: `""`
/// is the list of all codes, `/{code}` is one page. Browsers get the Markdown as
/// preformatted HTML: rendering it would bring a large dependency into every
/// application.
pub(crate) fn respond(rest: &str, base: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let text = match rest.trim_end_matches('/') {
        "" => index(base),
        rest => Code::parse(rest.strip_prefix('/')?)?.page().to_owned(),
    };
    let (text, content_type) = match prefers_html(headers) {
        true => (to_html(&text), "text/html; charset=utf-8"),
        false => (text, "text/markdown; charset=utf-8"),
    };
    let mut response = Response::new(body::full(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, FRESH);
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    Some(response)
}

fn index(base: &str) -> String {
    let mut text = "# Problems\n\n| code | status | title |\n|---|---|---|\n".to_owned();
    for code in Code::ALL {
        let entry = code.entry();
        let (name, status, title) = (entry.word, entry.status.as_u16(), entry.title);
        let line = writeln!(text, "| [`{name}`]({base}/{name}) | {status} | {title} |");
        line.expect("a string takes all that is written to it");
    }
    text
}

fn prefers_html(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .any(|line| line.contains("text/html"))
}

fn to_html(text: &str) -> String {
    let escaped = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let title = escaped.lines().next().unwrap_or_default();
    let title = title.trim_start_matches("# ");
    format!(
        "<!doctype html><meta charset=\"utf-8\"><title>{title}</title><pre style=\"white-space:pre-wrap\">{escaped}</pre>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_about_its_code() {
        for code in Code::ALL {
            let entry = code.entry();
            let title = format!("# {} — {}\n", entry.word, entry.title);
            let page = code.page();
            assert!(page.starts_with(&title), "{title}: {}", &page[..80]);
            assert!(page.contains(&format!("**Status:** {}", entry.status.as_u16())));
            assert_eq!(Code::parse(entry.word), Some(code));
        }
    }
}
