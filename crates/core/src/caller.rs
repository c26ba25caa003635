//! The caller of a request: tenant, project and a typed subject.
//!
//! A caller is part of an operation's identity, so that no caller ever gets the
//! reply of another. A token or a key cannot contain names that only the gateway
//! gives: those that begin with `_`, and two services.

use std::fmt;
use std::sync::Arc;

/// The longest tenant, project or subject id, in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// The subject under which verified webhooks are recorded.
pub const WEBHOOK_INGEST: &str = "webhook-ingest";
/// The subject of the trusted scheduler.
pub const SCHEDULER: &str = "scheduler";

/// The tenant and project of unknown callers.
const LOCAL: &str = "_local";

/// The kind of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SubjectKind {
    /// A person.
    User,
    /// A program.
    Service,
    /// A person as a member of the tenant.
    TenantMember,
    /// An application that acts for itself, or an unknown sender.
    Client,
}

impl SubjectKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::User, Self::Service, Self::TenantMember, Self::Client];

    /// The word in names, headers and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Service => "service",
            Self::TenantMember => "tenant_member",
            Self::Client => "client",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A typed subject, displayed as `{type}:{id}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    kind: SubjectKind,
    id: Box<str>,
}

impl Subject {
    /// A subject of this kind. The id is 1 to 256 bytes without control characters.
    pub fn new(kind: SubjectKind, id: &str) -> Result<Self, CallerError> {
        Ok(Self {
            kind,
            id: checked("subject", id)?,
        })
    }

    /// Parses `{type}:{id}`; the id may hold further colons.
    pub fn parse(text: &str) -> Result<Self, CallerError> {
        let (kind, id) = text.split_once(':').ok_or(CallerError::UntypedSubject)?;
        let kind = SubjectKind::parse(kind).ok_or(CallerError::UntypedSubject)?;
        Self::new(kind, id)
    }

    /// Its kind.
    pub fn kind(&self) -> SubjectKind {
        self.kind
    }

    /// The id without its type.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.as_str(), self.id)
    }
}

/// The sender of a request. Clones share one value, because every request has
/// several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(Arc<CallerParts>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct CallerParts {
    tenant: Box<str>,
    project: Box<str>,
    subject: Subject,
}

thread_local! {
    /// One per thread: every request without a known caller counts its clones, and
    /// threads that count in one place wait for each other.
    static LOCAL_CALLER: Caller = Caller::of(CallerParts {
        tenant: LOCAL.into(),
        project: LOCAL.into(),
        subject: Subject {
            kind: SubjectKind::Client,
            id: "anonymous".into(),
        },
    });
}

/// Why parts do not name a caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallerError {
    /// A name is empty.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// A name is too long.
    #[error("the {0} is longer than 256 bytes")]
    TooLong(&'static str),
    /// A name holds a control character.
    #[error("the {0} holds a control character")]
    Control(&'static str),
    /// A name begins or ends with a blank.
    #[error("the {0} begins or ends with a blank")]
    Blank(&'static str),
    /// A subject without a known type.
    #[error("a subject is written user:…, service:…, tenant_member:… or client:…")]
    UntypedSubject,
    /// A name that is reserved for the gateway.
    #[error("the {0} is a name reserved for the gateway")]
    Reserved(&'static str),
}

impl Caller {
    /// The caller of a gateway or layer that knows no callers.
    pub fn local() -> Self {
        LOCAL_CALLER.with(Self::clone)
    }

    fn of(parts: CallerParts) -> Self {
        Self(Arc::new(parts))
    }

    /// Whether this is the caller of a gateway or layer that knows no callers.
    pub fn is_local(&self) -> bool {
        self.tenant() == LOCAL
    }

    /// A caller named by the program itself. Reserved names are allowed.
    pub fn trusted(tenant: &str, project: &str, subject: Subject) -> Result<Self, CallerError> {
        Ok(Self::of(CallerParts {
            tenant: checked("tenant", tenant)?,
            project: checked("project", project)?,
            subject,
        }))
    }

    /// A caller named by a token or a key from outside. Reserved names are refused.
    pub fn claimed(tenant: &str, project: &str, subject: Subject) -> Result<Self, CallerError> {
        // Upstreams get the names in headers, where surrounding blanks are lost.
        for (what, name) in [
            ("tenant", tenant),
            ("project", project),
            ("subject", subject.id()),
        ] {
            if name.trim() != name {
                return Err(CallerError::Blank(what));
            }
        }
        if tenant.starts_with('_') {
            return Err(CallerError::Reserved("tenant"));
        }
        if project.starts_with('_') {
            return Err(CallerError::Reserved("project"));
        }
        let ours = matches!(subject.id(), WEBHOOK_INGEST | SCHEDULER);
        if subject.kind == SubjectKind::Service && ours {
            return Err(CallerError::Reserved("subject"));
        }
        Self::trusted(tenant, project, subject)
    }

    /// The tenant.
    pub fn tenant(&self) -> &str {
        &self.0.tenant
    }

    /// The project.
    pub fn project(&self) -> &str {
        &self.0.project
    }

    /// The subject.
    pub fn subject(&self) -> &Subject {
        &self.0.subject
    }
}

fn checked(what: &'static str, name: &str) -> Result<Box<str>, CallerError> {
    if name.is_empty() {
        return Err(CallerError::Empty(what));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(CallerError::TooLong(what));
    }
    if name.chars().any(char::is_control) {
        return Err(CallerError::Control(what));
    }
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("acme", "shop", "user:1", Ok(()))]
    #[case::colons_in_the_id("acme", "shop", "user:a:b", Ok(()))]
    #[case::tenant_sentinel("_local", "shop", "user:1", Err(CallerError::Reserved("tenant")))]
    #[case::project_sentinel("acme", "_tenant", "user:1", Err(CallerError::Reserved("project")))]
    #[case::ingest(
        "acme",
        "shop",
        "service:webhook-ingest",
        Err(CallerError::Reserved("subject"))
    )]
    #[case::scheduler(
        "acme",
        "shop",
        "service:scheduler",
        Err(CallerError::Reserved("subject"))
    )]
    #[case::user_of_that_name("acme", "shop", "user:scheduler", Ok(()))]
    #[case::empty("", "shop", "user:1", Err(CallerError::Empty("tenant")))]
    #[case::control("ac\u{7}me", "shop", "user:1", Err(CallerError::Control("tenant")))]
    #[case::blank_before(" acme", "shop", "user:1", Err(CallerError::Blank("tenant")))]
    #[case::blank_after("acme", "shop ", "user:1", Err(CallerError::Blank("project")))]
    #[case::blank_in_the_id("acme", "shop", "user:bob ", Err(CallerError::Blank("subject")))]
    #[case::blank_within("acme corp", "shop", "user:1", Ok(()))]
    #[case::untyped("acme", "shop", "42", Err(CallerError::UntypedSubject))]
    #[case::unknown_type("acme", "shop", "robot:42", Err(CallerError::UntypedSubject))]
    fn claimed_callers(
        #[case] tenant: &str,
        #[case] project: &str,
        #[case] subject: &str,
        #[case] want: Result<(), CallerError>,
    ) {
        let got =
            Subject::parse(subject).and_then(|subject| Caller::claimed(tenant, project, subject));
        assert_eq!(got.map(|_| ()), want);
    }
}
