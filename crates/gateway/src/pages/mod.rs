//! The pages that the gateway publishes: the policy of every route, which the IETF
//! draft demands, and a page for the `type` of every problem. Programs and people
//! use the same URLs; `Accept` selects the form. The problem pages are the files in
//! `docs/problems/`.
//!
//! The pages need no authentication, so they contain nothing that only operators
//! may know: no upstream, no caller, no secret.

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

use self::accept::{Form, choose_form};
use self::article::Article;
use self::policy::PolicyDocument;
use crate::config::Config;

/// The path of the problem pages.
const PROBLEMS: &str = "/.well-known/idempotency/problems";

/// Short, because classes change at run time.
const CACHING: HeaderValue = HeaderValue::from_static("max-age=60");

/// One of the gateway's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// The policy of every route.
    Policy,
    /// All problems.
    Problems,
    /// One problem.
    Problem(Article),
}

/// The page at a path, if there is one.
pub(crate) fn find(path: &str) -> Option<Page> {
    match path.strip_prefix(PROBLEMS) {
        Some("") => Some(Page::Problems),
        Some(rest) => Article::find(rest.strip_prefix('/')?).map(Page::Problem),
        None if path == WELL_KNOWN => Some(Page::Policy),
        None => None,
    }
}

/// The parts of a configuration that the pages show, with the current classes. Pages
/// are rendered on request.
pub(crate) struct Published {
    /// The gateway's public URL; empty if it is not configured.
    site: String,
    policy: PolicyDocument,
}

impl Published {
    pub(crate) fn new(config: &Config, classes: &BTreeMap<Arc<str>, Arc<Class>>) -> Self {
        let site = config.server.public_url.clone().unwrap_or_default();
        Self {
            policy: PolicyDocument::new(config, classes, &site),
            site,
        }
    }
}

/// The response with a page, in the form that the client prefers.
pub(crate) fn answer(page: Page, headers: &HeaderMap, published: &Published) -> Response<Body> {
    let Published { site, policy } = published;
    let lines = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&[u8]> = lines.map(HeaderValue::as_bytes).collect();
    let forms: &[Form] = match page {
        Page::Policy => &[Form::Json, Form::Html],
        Page::Problems | Page::Problem(_) => &[Form::Markdown, Form::Html, Form::Json],
    };
    let form = choose_form(&accept, forms);
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
    headers.insert(CACHE_CONTROL, CACHING);
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
    bytes.expect("strings and numbers always serialize").into()
}
