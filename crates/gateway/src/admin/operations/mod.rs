//! `/admin/v1/operations`: operations are listed, shown, purged, resolved,
//! resumed and redelivered, one file per verb.
//!
//! Of a request only its identity is shown. Of a reply the head is shown, and the
//! body only where the operator asks for it. A change names one operation in its
//! path, or goes through [`bulk`]: first a preview, then the frozen set.

mod bulk;
mod filter;
mod list;
mod purge;
mod redeliver;
mod resolve;
mod resume;
mod show;

use std::sync::Arc;
use std::time::Duration;

use onceward_core::deadline::store_within;
use onceward_core::identity::OperationId;
use onceward_core::record::{Fence, Record, Reply, State};
use onceward_core::store::{Changed, Force, Inspect, Resolution, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use self::bulk::FrozenSets;
pub(super) use self::bulk::{BulkAnswer, BulkRequest};
pub(super) use self::list::{ListQuery, OperationsPage, list};
pub(super) use self::purge::{BulkPurgeRequest, PurgeRequest, purge, purge_many};
pub(super) use self::redeliver::{redeliver, redeliver_many};
pub(super) use self::resolve::{BulkResolveRequest, ResolveRequest, resolve, resolve_many};
pub(super) use self::resume::{resume, resume_many};
pub(super) use self::show::{Operation, ShowQuery, show};
use super::audit::Change;
use super::extract::RequestBody;
use super::problem::Problem;
use super::{Action, AdminState, Applied};

/// The time limit for a page of a listing.
const LIST_DEADLINE: Duration = Duration::from_secs(15);
/// The time limit for reading one operation.
const STORE_DEADLINE: Duration = Duration::from_secs(2);
/// The time limit for changing one. On a shared store a change waits for a second until
/// no gateway gives the earlier reply any more.
const CHANGE_DEADLINE: Duration = Duration::from_secs(5);

/// What an operator does to an operation, with its parameters.
#[derive(Clone, Debug)]
enum Verb {
    Purge(Force),
    Resolve(Arc<Statement>),
    Resume,
    Redeliver,
}

/// An operator's statement about an unknown operation.
#[derive(Debug)]
enum Statement {
    Ran(Arc<Reply>),
    NotRun,
    Unsure,
}

impl Verb {
    fn action(&self) -> Action {
        match self {
            Self::Purge(_) => Action::Purge,
            Self::Resolve(_) => Action::Resolve,
            Self::Resume => Action::Resume,
            Self::Redeliver => Action::Redeliver,
        }
    }

    /// The parameters, for the audit log.
    fn parameters(&self) -> Value {
        match self {
            Self::Purge(force) => json!({ "force": *force == Force::Yes }),
            Self::Resolve(resolved) => match resolved.as_ref() {
                Statement::Ran(reply) => json!({
                    "outcome": "ran",
                    "status": reply.status,
                    "body_bytes": reply.body.len(),
                }),
                Statement::NotRun => json!({ "outcome": "not_run" }),
                Statement::Unsure => json!({ "outcome": "unsure" }),
            },
            Self::Resume | Self::Redeliver => json!({}),
        }
    }

    /// Changes one operation in the store. With a fence, an operation that was
    /// granted again since is not resolved.
    async fn apply(
        &self,
        inspect: &dyn Inspect,
        id: OperationId,
        fence: Option<Fence>,
    ) -> Result<Changed, StoreError> {
        let step = match self {
            Self::Purge(force) => inspect.purge(id, *force),
            Self::Resume => inspect.resume(id),
            Self::Redeliver => inspect.redeliver(id),
            Self::Resolve(resolved) => match resolved.as_ref() {
                Statement::Ran(reply) => inspect.resolve(id, fence, Resolution::Ran(reply.clone())),
                Statement::NotRun => inspect.resolve(id, fence, Resolution::NotRun),
                Statement::Unsure => return confirm_unknown(inspect, id).await,
            },
        };
        store_within(CHANGE_DEADLINE, step).await
    }

    /// The problem of an operation whose state does not allow the change.
    fn refused(&self, state: State) -> Problem {
        let is = state.as_str();
        let detail = match (self, state) {
            (Self::Purge(_), _) => "The operation is running. If it is purged now, a retry could run it a second time; `force` purges it all the same.".to_owned(),
            (Self::Resolve(_), State::Unknown) => "The operation has run again under another fence since; look at it, and name that fence.".to_owned(),
            (Self::Resolve(_), _) => format!("Only an unknown operation can be resolved; this one is {is}."),
            (Self::Resume, _) => format!("Only a paused operation can be resumed; this one is {is}."),
            (Self::Redeliver, State::Queued | State::Running) => format!("The event is being delivered already: it is {is}."),
            (Self::Redeliver, State::Expired) => "The stored request has expired with the reply; ask the provider to send the event again.".to_owned(),
            (Self::Redeliver, _) => format!("Only an event that the gateway delivers by itself can be redelivered. This operation is {is}, and its request is not stored; purge it to let the sender send it again."),
        };
        Problem::wrong_state(state, detail)
    }
}

/// `unsure` changes nothing: the operation must be unknown, and stays so.
async fn confirm_unknown(inspect: &dyn Inspect, id: OperationId) -> Result<Changed, StoreError> {
    let record = store_within(STORE_DEADLINE, inspect.show(id)).await?;
    Ok(match record.map(|record| record.state) {
        None => Changed::Absent,
        Some(State::Unknown) => Changed::Done,
        Some(state) => Changed::Refused(state),
    })
}

/// The body of a request that needs only a reason.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhyRequest {
    /// The reason; the audit log keeps it.
    why: String,
}

impl RequestBody for WhyRequest {}

/// An operation after a change.
#[derive(Serialize, JsonSchema)]
pub(super) struct ChangedOperation {
    /// The operation's id.
    operation_id: String,
    /// The operation's state now; null if it no longer exists.
    state: Option<&'static str>,
}

/// Changes one operation, with an audit entry.
async fn change_one(
    admin: &AdminState,
    change: Change,
    verb: Verb,
    id: OperationId,
    fence: Option<Fence>,
) -> Result<ChangedOperation, Problem> {
    let (inspect, courier_wakeup) = (admin.inspect.clone(), admin.courier_wakeup.clone());
    let metrics = admin.metrics.clone();
    let work = async move {
        let before = read(inspect.as_ref(), id).await?;
        let changed = verb.apply(inspect.as_ref(), id, fence).await;
        match changed.map_err(|error| Problem::store_write(&error))? {
            Changed::Done => {}
            Changed::Absent => return Err(no_operation()),
            Changed::Refused(state) => return Err(verb.refused(state)),
        }
        courier_wakeup.notify_one();
        if let (Verb::Resolve(_), Some(record)) = (&verb, &before) {
            metrics.event_resolved(record);
        }
        let after = read(inspect.as_ref(), id).await?;
        let state = after.map(|record| record.state.as_str());
        Ok(Applied {
            // A purged operation can be looked up only in the audit log.
            result: json!({ "state": state, "was": before.map(|record| identify(&record)) }),
            answer: ChangedOperation {
                operation_id: id.to_string(),
                state,
            },
        })
    };
    admin.change(change.on(id.to_string()), work).await
}

async fn read(inspect: &dyn Inspect, id: OperationId) -> Result<Option<Arc<Record>>, Problem> {
    let record = store_within(STORE_DEADLINE, inspect.show(id)).await;
    record.map_err(|error| Problem::store_read(&error))
}

/// An operation in an audit entry.
fn identify(record: &Record) -> Value {
    json!({
        "operation_id": record.id.to_string(),
        "name": record.identity.name().ok(),
        "endpoint": record.identity.endpoint.as_str(),
        "state": record.state.as_str(),
    })
}

fn no_operation() -> Problem {
    Problem::not_found("No operation has this id.")
}
