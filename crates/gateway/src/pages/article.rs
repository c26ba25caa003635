//! The pages about problems. Each is a file in `docs/problems/` that is compiled in.
//! The head of a page holds the members of the problem, and a test compares them
//! with the problem itself.

use std::fmt::Write as _;

use onceward_http::problem::Code;
use serde::Serialize;

use super::PROBLEMS;

/// The page of one problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Article {
    code: Code,
}

/// The head of a page, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProblemHead<'a> {
    pub(super) title: &'a str,
    /// The status with its reason, such as `409 Conflict`.
    pub(super) status_line: &'a str,
    pub(super) status: u16,
    pub(super) retryable: bool,
    pub(super) safe_new_key: bool,
    /// The text below the head.
    pub(super) rest: &'a str,
}

/// A problem, as JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProblemSummary {
    pub(super) code: &'static str,
    pub(super) status: u16,
    pub(super) title: &'static str,
    pub(super) retryable: bool,
    pub(super) safe_new_key: bool,
    pub(super) url: String,
}

/// All problems, as JSON.
#[derive(Serialize)]
pub(super) struct ProblemIndex {
    problems: Vec<ProblemSummary>,
}

/// The page of a problem, as JSON.
#[derive(Serialize)]
pub(super) struct ProblemDocument {
    #[serde(flatten)]
    summary: ProblemSummary,
    text: &'static str,
}

impl Article {
    /// The page about the code with this name.
    pub(super) fn find(name: &str) -> Option<Self> {
        let code = Code::parse(name)?;
        Some(Self { code })
    }

    /// All pages.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Code::ALL.into_iter().map(|code| Self { code })
    }

    pub(super) fn code(self) -> Code {
        self.code
    }

    pub(super) fn text(self) -> &'static str {
        self.code.page()
    }

    pub(super) fn head(self) -> ProblemHead<'static> {
        ProblemHead::read(self.text()).expect("a test parses the head of every page")
    }

    pub(super) fn summary(self, site: &str) -> ProblemSummary {
        let head = self.head();
        let code = self.code.as_str();
        ProblemSummary {
            code,
            status: head.status,
            title: head.title,
            retryable: head.retryable,
            safe_new_key: head.safe_new_key,
            url: format!("{site}{PROBLEMS}/{code}"),
        }
    }

    pub(super) fn document(self, site: &str) -> ProblemDocument {
        ProblemDocument {
            summary: self.summary(site),
            text: self.text(),
        }
    }
}

impl<'a> ProblemHead<'a> {
    /// Parses the beginning of a page:
    ///
    /// ```text
    /// # code — Title
    ///
    /// **Status:** 409 Conflict · `retryable: true` · `safe_new_key: false`
    /// ```
    fn read(text: &'a str) -> Option<Self> {
        let (first, text) = text.strip_prefix("# ")?.split_once("\n\n")?;
        let (_, title) = first.split_once(" — ")?;
        let (facts, rest) = text.strip_prefix("**Status:** ")?.split_once('\n')?;
        let mut facts = facts.split(" · ");
        let status_line = facts.next()?;
        Some(Self {
            title,
            status_line,
            status: status_line.split(' ').next()?.parse().ok()?,
            retryable: flag(facts.next()?, "retryable")?,
            safe_new_key: flag(facts.next()?, "safe_new_key")?,
            rest,
        })
    }
}

fn flag(fact: &str, name: &str) -> Option<bool> {
    let fact = fact.strip_prefix('`')?.strip_suffix('`')?;
    let (fact_name, value) = fact.split_once(": ")?;
    (fact_name == name).then(|| value.parse().ok())?
}

/// All problems, for JSON.
pub(super) fn index(site: &str) -> ProblemIndex {
    ProblemIndex {
        problems: Article::all()
            .map(|article| article.summary(site))
            .collect(),
    }
}

/// All problems, as Markdown.
pub(super) fn index_text() -> String {
    let mut text = "# Problems\n\n| code | status | meaning |\n|---|---|---|\n".to_owned();
    for article in Article::all() {
        let head = article.head();
        let code = article.code.as_str();
        let (status, title) = (head.status, head.title);
        let line = writeln!(
            text,
            "| [`{code}`]({PROBLEMS}/{code}) | {status} | {title} |"
        );
        line.expect("writing to a string does not fail");
    }
    text
}
