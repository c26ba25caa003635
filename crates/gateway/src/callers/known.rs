//! Somebody who has been proven: the one type behind which nobody asks again
//! who calls.
//!
//! A [`Known`] is made in two ways only. What a key or a token says goes
//! through [`Known::claimed`], which refuses the names that the gateway itself
//! gives; the scheduler, proven by its signature, is [`Known::scheduler`].

use std::sync::Arc;

use onceward_core::caller::{Caller, CallerError, SCHEDULER, Subject, SubjectKind};

use super::refusal::{AuthError, Prohibition, Refusal};
use crate::config::{Access, KnownBy, Scope, SubjectPattern};

/// Stands for a project while the other names of a caller without one are checked.
const NO_PROJECT: &str = "none";

/// A proven caller, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    tenant: Arc<str>,
    project: Option<Arc<str>>,
    subject: Subject,
    scopes: Arc<[String]>,
    by: KnownBy,
}

impl Known {
    /// Somebody named by a key or a token. Reserved names are refused.
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

    /// The scheduler, acting for this tenant and project. Only for who has
    /// verified its signature.
    pub(super) fn scheduler(tenant: &str, project: &str) -> Result<Self, CallerError> {
        let subject = Subject::new(SubjectKind::Service, SCHEDULER)?;
        // The names still come from outside; the subject alone is ours to give.
        let anybody = Subject::new(SubjectKind::Service, NO_PROJECT)?;
        Caller::claimed(tenant, project, anybody)?;
        Ok(Self {
            tenant: tenant.into(),
            project: Some(project.into()),
            subject,
            scopes: Arc::default(),
            by: KnownBy::Scheduler,
        })
    }

    /// By what it is known.
    pub(crate) fn by(&self) -> KnownBy {
        self.by
    }

    /// Whose names keys live under on a route of this scope.
    pub(crate) fn caller(&self, scope: Scope) -> Result<Caller, AuthError> {
        let project = match scope.sentinel() {
            Some(sentinel) => sentinel,
            None => self.project.as_deref().ok_or(Prohibition::NoProject)?,
        };
        // The names were checked when this was made; the sentinel is ours.
        Caller::trusted(&self.tenant, project, self.subject.clone())
            .map_err(|error| Refusal::Caller(error).into())
    }

    /// Whether a route with such a door lets it in.
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

/// What tests look at; everybody else asks for a caller.
#[cfg(test)]
impl Known {
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
