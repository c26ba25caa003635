//! Recovery by operation id: for the operation's own caller, which must still
//! be allowed on the route where the operation ran.

use std::sync::Arc;

use http::HeaderMap;
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::identity::OperationId;
use onceward_core::record::Record;
use onceward_http::problem::Problem;
use onceward_http::recovery::recover_record;
use onceward_http::run::store_unavailable;

use super::admit::{AdmittedCaller, admit_caller};
use super::authenticate::{authorise, refuse};
use super::recover::{is_not_found, recovery_context};
use super::route::AskedById;
use super::screen::Screened;
use crate::callers::{self, AuthError, Authentication, VerifiedCaller};
use crate::config::{Access, KnownBy, Scope};
use crate::observe::report::{Answered, Refused, Report, Unanswerable};
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};

/// Answers a request for an operation by its id.
pub(super) async fn recover_operation<'a>(
    runtime: &Runtime,
    plan: &Plan,
    asked: AskedById<'_>,
    request: &Screened,
    report: Report<'a>,
) -> Result<Answered<'a>, Unanswerable<'a>> {
    let headers = request.headers();
    let authenticated = authenticate_asker(plan, asked.id, headers).await;
    let (known, report) = report.carry(authenticated)?;
    let caller = match &known {
        Some(known) => known.caller(Scope::Tenant),
        None => Ok(Caller::local()),
    };
    let (caller, report) = report.carry(caller.map_err(|error| refuse(&error, None)))?;
    let (admitted, report) = report.carry(admit_caller(runtime, caller).await)?;
    let Some(id) = OperationId::parse(asked.id) else {
        return Err(report.refused(Problem::no_operation().into()));
    };
    let found = runtime.engine().find(id).await;
    let (found, report) = report.carry(found.map_err(|error| store_unavailable(&error)))?;
    let own = found.and_then(|record| {
        let asker = (known.as_ref(), &admitted);
        let own = own_operation(runtime, plan, asker, &record, &report)?;
        Some((record, own))
    });
    let Some((record, own)) = own else {
        return Err(report.refused(Problem::no_operation().into()));
    };
    let context = recovery_context(&own.caller, &own.class, &own.route, headers);
    let ended = recover_record(runtime.protection(), context, record, asked.target).await;
    let report = match is_not_found(&ended) {
        true => report,
        false => report.by_route(&own.route),
    };
    report.concluded(ended.response)
}

/// Authenticates the request; `None` for a sender that is accepted on open routes
/// only.
async fn authenticate_asker(
    plan: &Plan,
    id: &str,
    headers: &HeaderMap,
) -> Result<Option<VerifiedCaller>, Refused> {
    if !plan.config.auth.knows_callers() {
        return Ok(None);
    }
    match plan.callers.authenticate(headers).await {
        Ok(Authentication::Verified(known)) => Ok(Some(known)),
        // A scheduler signs the id in place of a key, and no body.
        Ok(Authentication::Signed(signed)) => signed
            .verify("operations", id, &[])
            .map(Some)
            .map_err(|error| refuse(&error, Some(KnownBy::Scheduler))),
        // Whatever credential a sender presents, it may read the replies of its own
        // requests to an open route.
        Err(AuthError::Missing | AuthError::Refused(_)) if has_open_route(plan) => Ok(None),
        Err(error) => Err(refuse(&error, callers::credential_kind(headers))),
    }
}

/// An operation of the caller: the caller as admitted on the operation's route, and
/// the route.
struct OwnOperation {
    caller: AdmittedCaller,
    route: Arc<PlannedRoute>,
    class: Arc<Class>,
}

/// The route of an operation, if the operation belongs to the asker and the route
/// is still open to it.
fn own_operation(
    runtime: &Runtime,
    plan: &Plan,
    (known, admitted): (Option<&VerifiedCaller>, &AdmittedCaller),
    record: &Record,
    report: &Report<'_>,
) -> Option<OwnOperation> {
    let identity = &record.identity;
    let route = match plan.routes.named(identity.endpoint.as_str()) {
        Some(route) => route,
        None => {
            let (method, path) = identity.endpoint.as_str().split_once(' ')?;
            plan.routes.at(&method.parse().ok()?, path)?
        }
    };
    let caller = match known {
        _ if route.route.access == Access::Anyone => Caller::local(),
        Some(known) => authorise(known, route)
            .inspect_err(|refused| report.count_refusal(refused))
            .ok()?,
        None if plan.config.auth.knows_callers() => return None,
        None => Caller::local(),
    };
    let class = runtime.class(plan, &route.route.class).ok()?;
    (identity.caller == caller).then(|| OwnOperation {
        caller: admitted.with_identity(caller),
        route: route.clone(),
        class,
    })
}

fn has_open_route(plan: &Plan) -> bool {
    let mut routes = plan.routes.all().iter();
    routes.any(|route| route.route.access == Access::Anyone)
}
