//! What the gateway publishes of itself: which routes are protected and how, as
//! the IETF draft demands, and the page behind each problem's `type`, so that
//! the links in an answer lead somewhere. Programs and people read the same
//! addresses; `Accept` tells them apart. The problem pages are the files in
//! `docs/problems/`.
//!
//! Nobody has to say who he is to read this, so nothing stands here that only
//! the operator should know: no upstream, no caller, no secret.

mod accept;
mod article;
mod html;
mod policy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, header};
use onceward_core::class::Class;
use onceward_http::body::{self, Body};
use onceward_http::problem::WELL_KNOWN;

use self::accept::{Form, preferred};
use self::article::Article;
use crate::config::Config;

/// Where the problems are.
const PROBLEMS: &str = "/.well-known/idempotency/problems";

/// How long a page may be taken for true. Classes change at run time.
const FRESH: HeaderValue = HeaderValue::from_static("max-age=60");

/// A page of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// The policy of every route.
    Policy,
    /// All problems.
    Problems,
    /// What a problem means.
    Problem(Article),
}

/// The page that belongs to a path, if it is one of ours.
pub(crate) fn find(path: &str) -> Option<Page> {
    match path.strip_prefix(PROBLEMS) {
        Some("") => Some(Page::Problems),
        Some(rest) => Article::find(rest.strip_prefix('/')?).map(Page::Problem),
        None if path == WELL_KNOWN => Some(Page::Policy),
        None => None,
    }
}

/// What is published of a configuration, with the classes as they are now.
/// Cheap to make; nothing is written before somebody asks.
pub(crate) struct Published {
    /// Where clients find this gateway; empty where nobody said.
    site: String,
    policy: policy::Document,
}

impl Published {
    pub(crate) fn new(config: &Config, classes: &BTreeMap<Arc<str>, Arc<Class>>) -> Self {
        let site = config.server.public_url.clone().unwrap_or_default();
        Self {
            policy: policy::Document::new(config, classes, &site),
            site,
        }
    }
}

/// A page as an answer, in the form that the client likes best.
pub(crate) fn answer(page: Page, headers: &HeaderMap, published: &Published) -> Response<Body> {
    let Published { site, policy } = published;
    let lines = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&[u8]> = lines.map(HeaderValue::as_bytes).collect();
    let forms: &[Form] = match page {
        Page::Policy => &[Form::Json, Form::Html],
        Page::Problems | Page::Problem(_) => &[Form::Markdown, Form::Html, Form::Json],
    };
    let form = preferred(&accept, forms);
    let content = match (page, form) {
        (Page::Policy, Form::Html) => html::policy(policy, site),
        (Page::Policy, _) => json(policy),
        (Page::Problems, Form::Html) => html::problems(site),
        (Page::Problems, Form::Json) => json(&article::index(site)),
        (Page::Problems, Form::Markdown) => article::index_text().into(),
        (Page::Problem(article), Form::Html) => html::problem(article, site),
        (Page::Problem(article), Form::Json) => json(&article.document(site)),
        (Page::Problem(article), Form::Markdown) => Bytes::from_static(article.text().as_bytes()),
    };
    let mut response = Response::new(body::full(content));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, form.content_type());
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CACHE_CONTROL, FRESH);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let security = match form {
        Form::Html => html::content_security(),
        Form::Json | Form::Markdown => HeaderValue::from_static("default-src 'none'"),
    };
    headers.insert(CONTENT_SECURITY_POLICY, security);
    response
}

fn json(document: &impl serde::Serialize) -> Bytes {
    let bytes = serde_json::to_vec(document);
    bytes
        .expect("names and numbers can always be written")
        .into()
}
