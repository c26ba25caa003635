//! Recovery by key: the reply of an earlier request, for its own caller.

use http::HeaderMap;
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::identity::Endpoint;
use onceward_http::problem::{Code, Problem};
use onceward_http::recovery::{self, RecoveryContext, RecoveryPath};
use onceward_http::run::ProtectedResponse;

use super::admit::{AdmittedCaller, admit_caller};
use super::authenticate::{authorise, check_credential, refuse};
use super::idempotency_key;
use super::route::AskedByKey;
use super::screen::Screened;
use crate::callers::Authentication;
use crate::config::KnownBy;
use crate::observe::report::{Answered, Refused, Report, Unanswerable};
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};

/// Answers a recovery request. The routes at its path are tried in turn; a route
/// that is closed to the caller does not hide the next one.
pub(super) async fn recover<'a>(
    runtime: &Runtime,
    plan: &Plan,
    asked: AskedByKey<'_>,
    request: &Screened,
    report: Report<'a>,
) -> Result<Answered<'a>, Unanswerable<'a>> {
    let AskedByKey {
        recovery,
        candidates,
    } = asked;
    let RecoveryPath { path, key, target } = recovery;
    let (key, mut report) = report.carry(key.map_err(Problem::invalid_key))?;
    let mut refused: Option<Refused> = None;
    for (route, endpoint) in candidates {
        let headers = request.headers();
        let (caller, by) = match authenticate_asker(plan, route, &endpoint, &key, headers).await {
            Ok(authenticated) => authenticated,
            Err(problem) => {
                report.count_refusal(&problem);
                refused.get_or_insert(problem.into_problem().into());
                continue;
            }
        };
        let (caller, after) = report.carry(admit_caller(runtime, caller).await)?;
        let parsed = idempotency_key::from_path(&key, by).map_err(Problem::invalid_key);
        let (key, after) = after.carry(parsed)?;
        let (class, after) = after.carry(runtime.class(plan, &route.route.class))?;
        let context = recovery_context(&caller, &class, route, headers);
        let endpoints = std::slice::from_ref(&endpoint);
        let protection = runtime.protection();
        let ended = recovery::recover(protection, context, (endpoints, path), &key, target).await;
        let after = after.recovered(&caller, (&endpoint, route.route.policy), &key, &ended);
        if is_not_found(&ended) {
            report = after;
            refused = Some(Problem::no_operation().into());
            continue;
        }
        let report = after.by_route(route).sent_by(&caller, &class.name);
        return report
            .ended(ended.outcome, ended.id)
            .concluded(ended.response);
    }
    Err(report.refused(refused.unwrap_or_else(|| Problem::no_operation().into())))
}

/// Authenticates a recovery request. A scheduler signs an empty body.
async fn authenticate_asker(
    plan: &Plan,
    route: &PlannedRoute,
    endpoint: &Endpoint,
    key: &str,
    headers: &HeaderMap,
) -> Result<(Caller, Option<KnownBy>), Refused> {
    let known = match check_credential(plan, route, headers).await? {
        None => return Ok((Caller::local(), None)),
        Some(Authentication::Verified(known)) => known,
        Some(Authentication::Signed(signed)) => signed
            .verify(endpoint.as_str(), key, &[])
            .map_err(|error| refuse(&error, Some(KnownBy::Scheduler)))?,
    };
    Ok((authorise(&known, route)?, Some(known.by())))
}

/// An admitted caller that asks for an earlier reply, and the terms of its route.
pub(super) fn recovery_context<'a>(
    caller: &'a AdmittedCaller,
    class: &'a Class,
    route: &'a PlannedRoute,
    headers: &'a HeaderMap,
) -> RecoveryContext<'a> {
    RecoveryContext {
        caller,
        class,
        rules: &route.rules,
        headers,
    }
}

pub(super) fn is_not_found(ended: &ProtectedResponse) -> bool {
    matches!(&ended.response, Err(problem) if problem.code() == Code::NoOperation)
}
