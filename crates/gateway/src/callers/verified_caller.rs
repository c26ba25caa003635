//! A caller whose credential has been verified.
//!
//! A [`VerifiedCaller`] is made in two ways only: [`VerifiedCaller::claimed`] takes the names in
//! a key or a token and refuses the reserved ones; [`VerifiedCaller::scheduler`] is for a
//! scheduler whose signature was verified.

use std::sync::Arc;

use onceward_core::caller::{Caller, CallerError, SCHEDULER, Subject, SubjectKind};

use super::refusal::{AuthError, Prohibition, Refusal};
use crate::config::{Access, KnownBy, Scope, SubjectPattern};

/// A placeholder that completes a caller while its other names are checked.
const NO_PROJECT: &str = "none";

/// An authenticated caller and its scopes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedCaller {
    tenant: Arc<str>,
    project: Option<Arc<str>>,
    subject: Subject,
    scopes: Arc<[String]>,
    by: KnownBy,
}

impl VerifiedCaller {
    /// The caller that a key or a token names. Reserved names are refused.
    pub(super) fn claimed(
        tenant: &str,
        project: Option<&str>,
        subject: Subject,
        scopes: Vec<String>,
        by: KnownBy,
    ) -> Result<Self, CallerError> {
        Caller::claimed(tenant, project.unwrap_or(NO_PROJECT), subject.clone())?;
        Ok(Self {
            tenant: tenant.into(),
            project: project.map(Arc::from),
            subject,
            scopes: scopes.into(),
            by,
        })
    }

    /// The scheduler, acting for this tenant and project. The caller of this
    /// function must have verified the signature.
    pub(super) fn scheduler(tenant: &str, project: &str) -> Result<Self, CallerError> {
        let subject = Subject::new(SubjectKind::Service, SCHEDULER)?;
        // The tenant and project come from outside and are checked with an
        // unreserved subject; the reserved subject is given by the gateway.
        let unreserved = Subject::new(SubjectKind::Service, NO_PROJECT)?;
        Caller::claimed(tenant, project, unreserved)?;
        Ok(Self {
            tenant: tenant.into(),
            project: Some(project.into()),
            subject,
            scopes: Arc::default(),
            by: KnownBy::Scheduler,
        })
    }

    /// The authentication method.
    pub(crate) fn by(&self) -> KnownBy {
        self.by
    }

    /// The caller to which idempotency keys belong on a route of this scope.
    pub(crate) fn caller(&self, scope: Scope) -> Result<Caller, AuthError> {
        let project = match scope.sentinel() {
            Some(sentinel) => sentinel,
            None => self.project.as_deref().ok_or(Prohibition::NoProject)?,
        };
        // The names were checked on construction; the sentinel is the gateway's.
        Caller::trusted(&self.tenant, project, self.subject.clone())
            .map_err(|error| Refusal::Caller(error).into())
    }

    /// Checks that a route with this access rule allows the caller.
    pub(crate) fn may(&self, access: &Access) -> Result<(), AuthError> {
        let Access::Callers {
            by,
            subjects,
            scopes,
        } = access
        else {
            return Ok(());
        };
        if !by.is_empty() && !by.contains(&self.by) {
            return Err(Prohibition::KnownBy.into());
        }
        if !subjects.is_empty() && !subjects.iter().any(|one| self.is(one)) {
            return Err(Prohibition::Subject.into());
        }
        if !scopes.iter().all(|scope| self.scopes.contains(scope)) {
            return Err(Prohibition::Scope.into());
        }
        Ok(())
    }

    fn is(&self, pattern: &SubjectPattern) -> bool {
        let id = pattern.id.as_deref();
        pattern.kind == self.subject.kind() && id.is_none_or(|id| id == self.subject.id())
    }
}

/// Accessors for tests; other code uses [`caller`](Self::caller).
#[cfg(test)]
impl VerifiedCaller {
    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    pub(crate) fn project(&self) -> Option<&str> {
        self.project.as_deref()
    }

    pub(crate) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(crate) fn scopes(&self) -> &[String] {
        &self.scopes
    }
}
