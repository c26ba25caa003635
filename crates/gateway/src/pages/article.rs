//! The pages about problems. Each is a file in `docs/problems/`, built in; its
//! head holds what programs ask for, and a test compares that with what the
//! problem itself says.

use std::fmt::Write as _;

use onceward_http::problem::Code;
use serde::Serialize;

use super::PROBLEMS;

/// The page of one problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Article {
    code: Code,
}

/// What stands at the head of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) title: &'a str,
    /// The status in words, such as `409 Conflict`.
    pub(super) status_line: &'a str,
    pub(super) status: u16,
    pub(super) retryable: bool,
    pub(super) safe_new_key: bool,
    /// Everything below.
    pub(super) rest: &'a str,
}

/// A problem as programs read it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Entry {
    pub(super) code: &'static str,
    pub(super) status: u16,
    pub(super) title: &'static str,
    pub(super) retryable: bool,
    pub(super) safe_new_key: bool,
    pub(super) url: String,
}

/// All problems as programs read them.
#[derive(Serialize)]
pub(super) struct Index {
    problems: Vec<Entry>,
}

/// A page as programs read it.
#[derive(Serialize)]
pub(super) struct Document {
    #[serde(flatten)]
    entry: Entry,
    text: &'static str,
}

impl Article {
    /// The page about the code with this name.
    pub(super) fn find(word: &str) -> Option<Self> {
        let code = Code::parse(word)?;
        Some(Self { code })
    }

    /// Every page there is.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Code::ALL.into_iter().map(|code| Self { code })
    }

    pub(super) fn code(self) -> Code {
        self.code
    }

    pub(super) fn text(self) -> &'static str {
        self.code.page()
    }

    pub(super) fn head(self) -> Head<'static> {
        Head::read(self.text()).expect("a test reads the head of every page")
    }

    pub(super) fn entry(self, site: &str) -> Entry {
        let head = self.head();
        let code = self.code.as_str();
        Entry {
            code,
            status: head.status,
            title: head.title,
            retryable: head.retryable,
            safe_new_key: head.safe_new_key,
            url: format!("{site}{PROBLEMS}/{code}"),
        }
    }

    pub(super) fn document(self, site: &str) -> Document {
        Document {
            entry: self.entry(site),
            text: self.text(),
        }
    }
}

impl<'a> Head<'a> {
    /// Reads
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
    let (said, value) = fact.split_once(": ")?;
    (said == name).then(|| value.parse().ok())?
}

/// All problems, for programs.
pub(super) fn index(site: &str) -> Index {
    Index {
        problems: Article::all().map(|article| article.entry(site)).collect(),
    }
}

/// All problems, for people without a browser.
pub(super) fn index_text() -> String {
    let mut text = "# Problems\n\n| code | status | what it says |\n|---|---|---|\n".to_owned();
    for article in Article::all() {
        let head = article.head();
        let code = article.code.as_str();
        let (status, title) = (head.status, head.title);
        let line = writeln!(
            text,
            "| [`{code}`]({PROBLEMS}/{code}) | {status} | {title} |"
        );
        line.expect("a string takes all that is written to it");
    }
    text
}
