//! Bulk changes in two steps: a preview, then the frozen set.
//!
//! The preview counts the operations that match, changes nothing, and freezes
//! them as a set: their ids and fences, with the verb and its parameters. A second
//! request names the set and changes exactly these operations, a bounded number
//! per request, each request with its own audit entry. An operation that no
//! longer matches, or ran again since the preview, is skipped.
//!
//! Sets are in the memory of one gateway. They are few, bounded in size, and
//! expire; losing one costs another preview.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward_core::clock::{Clock, Timestamp};
use onceward_core::deadline::store_within;
use onceward_core::entropy::Entropy;
use onceward_core::identity::OperationId;
use onceward_core::record::{Fence, Record, State};
use onceward_core::store::{Changed, Cursor, Filter, Inspect, PageRequest, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::filter::{OperationFilter, parse_cursor};
use super::{LIST_DEADLINE, STORE_DEADLINE, Verb, identify};
use crate::admin::audit::{Change, Why};
use crate::admin::extract::{RequestBody, parse_why};
use crate::admin::operators::Operator;
use crate::admin::page::{self, parse_limit};
use crate::admin::problem::Problem;
use crate::admin::{Action, AdminState, Applied};

/// The largest set.
const SET_MAX: usize = 10_000;
/// How many pages of the store one preview reads at most.
const PAGES_MAX: usize = 100;
/// How many sets are kept; the one that expires first makes room.
const SETS_MAX: usize = 16;
/// How long a set is kept after its preview, and after each request that uses it.
const SET_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// How many operations of a set one request changes.
const BATCH_MAX: usize = 500;
/// How many of them are read at a time: their replies may be large.
const READS_MAX: usize = 32;

/// A bulk change without parameters: `filter` or `all` for the preview, then `set`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct BulkRequest {
    /// Which operations; not empty.
    filter: Option<OperationFilter>,
    /// Every operation, without a filter. Default: false.
    #[serde(default)]
    all: bool,
    /// The largest size of the set, from 1 to 10000. Default: 10000.
    limit: Option<usize>,
    /// The cursor from the previous preview: its `next`.
    after: Option<String>,
    /// The set of a preview: changes it.
    set: Option<String>,
    /// The reason; the audit log keeps it.
    why: String,
}

impl RequestBody for BulkRequest {}

/// The answer to a bulk request: a preview, or what became of a batch of the set.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(in crate::admin) enum BulkAnswer {
    Preview(BulkPreview),
    Result(BulkResult),
}

/// The operations that a bulk change would change. Nothing was changed.
#[derive(Serialize, JsonSchema)]
pub(in crate::admin) struct BulkPreview {
    /// How many operations the set holds.
    count: usize,
    /// How many of them are in each state.
    states: BTreeMap<&'static str, usize>,
    /// The set: send it as `set` to change these operations. Null where none matches.
    set: Option<String>,
    /// When the set expires.
    expires_at: Option<String>,
    /// The cursor of the next preview, where more operations may match than the
    /// set holds; null otherwise.
    next: Option<String>,
}

/// What became of a batch of a set.
#[derive(Serialize, JsonSchema)]
pub(in crate::admin) struct BulkResult {
    /// How many operations were changed.
    done: usize,
    /// How many were not changed because their state does not allow it.
    refused: usize,
    /// How many were not changed because they are gone or have changed since the preview.
    skipped: usize,
    /// How many operations of the set are left: send the same request again.
    remaining: usize,
}

/// The members that every bulk request has.
pub(super) struct Selection {
    /// Whether the request has parameters of its verb.
    pub(super) has_parameters: bool,
    pub(super) filter: Option<OperationFilter>,
    pub(super) all: bool,
    pub(super) limit: Option<usize>,
    pub(super) after: Option<String>,
    pub(super) set: Option<String>,
    pub(super) why: String,
}

impl From<BulkRequest> for Selection {
    fn from(request: BulkRequest) -> Self {
        Self {
            has_parameters: false,
            filter: request.filter,
            all: request.all,
            limit: request.limit,
            after: request.after,
            set: request.set,
            why: request.why,
        }
    }
}

/// Which of the two steps a request asks for.
enum BulkStep {
    Preview {
        filter: OperationFilter,
        limit: usize,
        after: Option<Cursor>,
    },
    Run {
        set: String,
    },
}

impl Selection {
    fn step(self) -> Result<BulkStep, Problem> {
        if let Some(set) = self.set {
            let alone = self.filter.is_none()
                && !self.all
                && self.limit.is_none()
                && self.after.is_none()
                && !self.has_parameters;
            return match alone {
                true => Ok(BulkStep::Run { set }),
                false => Err(Problem::bad_request(
                    "`set` is sent with `why` only: the preview has fixed everything else.",
                )),
            };
        }
        let selective = self.filter.filter(OperationFilter::is_selective);
        let filter = match (selective, self.all) {
            (Some(filter), false) => filter,
            (None, true) => OperationFilter::default(),
            (Some(_), true) => {
                return Err(Problem::bad_request(
                    "`filter` and `all` exclude each other.",
                ));
            }
            (None, false) => {
                return Err(Problem::bad_request(
                    "Name the operations: a `filter` that is not empty, or `all`.",
                ));
            }
        };
        Ok(BulkStep::Preview {
            filter,
            limit: parse_limit(self.limit, SET_MAX, SET_MAX)?,
            after: parse_cursor(self.after.as_deref())?,
        })
    }
}

/// Previews a bulk change, or runs a batch of a previewed one.
pub(super) async fn change_many(
    admin: &AdminState,
    operator: &Operator,
    action: Action,
    verb: impl FnOnce() -> Result<Verb, Problem>,
    selection: Selection,
) -> Result<BulkAnswer, Problem> {
    let why = parse_why(&selection.why)?;
    match selection.step()? {
        BulkStep::Preview {
            filter,
            limit,
            after,
        } => {
            let preview = preview(admin, verb()?, filter, limit, after).await?;
            Ok(BulkAnswer::Preview(preview))
        }
        BulkStep::Run { set } => {
            let result = run(admin, operator, action, set, &why).await?;
            Ok(BulkAnswer::Result(result))
        }
    }
}

async fn preview(
    admin: &AdminState,
    verb: Verb,
    mut filter: OperationFilter,
    limit: usize,
    after: Option<Cursor>,
) -> Result<BulkPreview, Problem> {
    verb.narrow(&mut filter)?;
    let parsed = filter.parse()?;
    let found = find(admin.inspect.as_ref(), &verb, &parsed, limit, after).await?;
    let count = found.operations.len();
    let set = FrozenSet {
        verb,
        described: filter,
        filter: Arc::new(parsed),
        operations: found.operations,
    };
    let frozen = (count > 0).then(|| admin.frozen_sets.freeze(set));
    let (set, expires_at) = frozen.unzip();
    Ok(BulkPreview {
        count,
        states: found.states,
        set,
        expires_at: expires_at.map(|at| at.to_string()),
        next: found.next.map(|cursor| cursor.0.to_string()),
    })
}

/// The operations that a verb would change. Records are not kept: their replies
/// may be large.
#[derive(Default)]
struct FoundOperations {
    operations: VecDeque<(OperationId, Fence)>,
    states: BTreeMap<&'static str, usize>,
    next: Option<Cursor>,
}

async fn find(
    inspect: &dyn Inspect,
    verb: &Verb,
    filter: &Filter,
    limit: usize,
    after: Option<Cursor>,
) -> Result<FoundOperations, Problem> {
    let mut found = FoundOperations {
        next: after,
        ..FoundOperations::default()
    };
    for _ in 0..PAGES_MAX {
        let page =
            PageRequest::first((limit - found.operations.len()).min(page::MAX)).after(found.next);
        let page = store_within(LIST_DEADLINE, inspect.list(filter, page)).await;
        let page = page.map_err(|error| Problem::store_read(&error))?;
        for record in page.records.iter().filter(|record| verb.fits(record)) {
            found.operations.push_back((record.id, record.fence));
            *found.states.entry(record.state.as_str()).or_default() += 1;
        }
        found.next = page.next;
        if found.next.is_none() || found.operations.len() >= limit {
            break;
        }
    }
    Ok(found)
}

impl Verb {
    /// Restricts a filter to the state that the verb is for.
    fn narrow(&self, filter: &mut OperationFilter) -> Result<(), Problem> {
        let (verb, only) = match self {
            Self::Resolve(_) => ("resolve", State::Unknown),
            Self::Resume => ("resume", State::Paused),
            Self::Purge(_) | Self::Redeliver => return Ok(()),
        };
        let only = only.as_str();
        match filter.state.as_deref() {
            Some(state) if state != only => Err(Problem::bad_request(format!(
                "Only {only} operations can be changed by `{verb}`: leave `state` out of the filter."
            ))),
            _ => {
                filter.state = Some(only.to_owned());
                Ok(())
            }
        }
    }

    /// Whether a preview counts an operation that matches the filter. Running
    /// operations are counted for a purge, so that the result reports them.
    fn fits(&self, record: &Record) -> bool {
        match self {
            Self::Purge(_) | Self::Resolve(_) | Self::Resume => true,
            Self::Redeliver => {
                let busy_or_gone = [State::Queued, State::Running, State::Expired];
                record.delivered && !busy_or_gone.contains(&record.state)
            }
        }
    }
}

/// Changes the next batch of a set.
async fn run(
    admin: &AdminState,
    operator: &Operator,
    action: Action,
    set: String,
    why: &Why,
) -> Result<BulkResult, Problem> {
    let mut request = admin.frozen_sets.describe(&set, action)?;
    request["set"] = set.as_str().into();
    let change = Change::by(operator, action, why).with_request(request);
    let at = admin.clone();
    let work = async move {
        // Taken only now: without an audit entry the set stays whole.
        let batch = at.frozen_sets.take(&set, action)?;
        let ran = run_batch(&at, &batch).await;
        at.courier_wakeup.notify_one();
        if let Some(error) = ran.error {
            at.frozen_sets.put_back(&set, ran.unconfirmed);
            return Err(interrupted(&error, &ran.done));
        }
        Ok(Applied {
            result: json!({
                "done": ran.done.len(),
                "refused": ran.refused,
                "skipped": ran.skipped,
                "were": ran.done,
            }),
            answer: BulkResult {
                done: ran.done.len(),
                refused: ran.refused,
                skipped: ran.skipped,
                remaining: at.frozen_sets.remaining(&set),
            },
        })
    };
    admin.change(change, work).await
}

/// What became of the operations of a batch.
#[derive(Default)]
struct BatchResult {
    /// The operations that were changed, as they were before.
    done: Vec<Value>,
    refused: usize,
    skipped: usize,
    /// Operations whose change the store did not confirm, or that were not
    /// reached after an error.
    unconfirmed: Vec<(OperationId, Fence)>,
    error: Option<StoreError>,
}

async fn run_batch(admin: &AdminState, batch: &Batch) -> BatchResult {
    // All are changed at once, as far as the store allows: each change may wait until
    // it is seen everywhere, and so they wait together.
    let reads = Arc::new(Semaphore::new(READS_MAX));
    let mut changing = JoinSet::new();
    for operation in batch.operations.iter().copied() {
        let (admin, verb) = (admin.clone(), batch.verb.clone());
        let (filter, reads) = (batch.filter.clone(), reads.clone());
        changing.spawn(async move {
            let changed = change_if_same(&admin, &verb, &filter, operation, &reads).await;
            if let Err(Some(_)) = &changed {
                // The others are not begun: the store is not available.
                reads.close();
            }
            (operation, changed)
        });
    }
    let mut result = BatchResult::default();
    for (operation, changed) in changing.join_all().await {
        match changed {
            Ok(BatchItem::Done(was)) => result.done.push(was),
            Ok(BatchItem::Refused) => result.refused += 1,
            Ok(BatchItem::Skipped) => result.skipped += 1,
            Err(error) => {
                result.unconfirmed.push(operation);
                result.error = error.or(result.error);
            }
        }
    }
    result
}

/// What became of one operation of a batch.
enum BatchItem {
    /// It was changed; the value identifies it as it was before.
    Done(Value),
    Refused,
    Skipped,
}

/// Changes an operation if it is still the one that was previewed: an unknown
/// operation that has completed since is not the one that was meant. Fails without an
/// error of its own where the change of another operation failed before.
async fn change_if_same(
    admin: &AdminState,
    verb: &Verb,
    filter: &Filter,
    (id, fence): (OperationId, Fence),
    reads: &Semaphore,
) -> Result<BatchItem, Option<StoreError>> {
    let inspect = admin.inspect.as_ref();
    let record = {
        let _permit = reads.acquire().await.map_err(|_| None)?;
        let record = store_within(STORE_DEADLINE, inspect.show(id)).await?;
        // Its reply is not held during the change.
        record.map(without_reply)
    };
    let same = |record: &Record| record.fence == fence && filter.matches(record);
    let Some(record) = record.filter(same) else {
        return Ok(BatchItem::Skipped);
    };
    Ok(match verb.apply(inspect, id, Some(fence)).await? {
        Changed::Done => {
            if let Verb::Resolve(_) = verb {
                admin.metrics.event_resolved(&record);
            }
            BatchItem::Done(identify(&record))
        }
        Changed::Refused(_) => BatchItem::Refused,
        Changed::Absent => BatchItem::Skipped,
    })
}

fn without_reply(record: Arc<Record>) -> Record {
    let mut record = Arc::unwrap_or_clone(record);
    record.answer = None;
    record
}

/// The audit log must name what was changed even if the rest is not certain.
fn interrupted(error: &StoreError, done: &[Value]) -> Problem {
    tracing::error!(%error, "store did not confirm all of a bulk change");
    let ids: Vec<_> = done
        .iter()
        .filter_map(|was| was["operation_id"].as_str())
        .collect();
    Problem::store_unavailable(format!(
        "The store did not confirm every change. {} operations were changed for certain: {}. The rest is still in the set: send the same request again.",
        ids.len(),
        ids.join(" ")
    ))
}

/// The sets of all previews that are not used up.
pub(crate) struct FrozenSets {
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    sets: Mutex<BTreeMap<String, (FrozenSet, Timestamp)>>,
}

/// The operations of a preview, and the change to make.
struct FrozenSet {
    verb: Verb,
    /// The filter as it was given, for the audit log.
    described: OperationFilter,
    filter: Arc<Filter>,
    /// Each operation with the fence that it had.
    operations: VecDeque<(OperationId, Fence)>,
}

/// A part of a set that one request changes.
struct Batch {
    verb: Verb,
    filter: Arc<Filter>,
    operations: Vec<(OperationId, Fence)>,
}

impl FrozenSets {
    pub(crate) fn new(clock: Arc<dyn Clock>, entropy: Entropy) -> Self {
        Self {
            clock,
            entropy,
            sets: Mutex::default(),
        }
    }

    /// Keeps a set; returns its name and when it expires.
    fn freeze(&self, set: FrozenSet) -> (String, Timestamp) {
        let name = format!("set_{:032x}", self.entropy.next_u128());
        let expires_at = self.clock.now().plus(SET_LIFETIME);
        let mut sets = self.live();
        while sets.len() >= SETS_MAX {
            let first = sets.iter().min_by_key(|(_, (_, expires_at))| *expires_at);
            let Some(first) = first.map(|(name, _)| name.clone()) else {
                break;
            };
            sets.remove(&first);
        }
        sets.insert(name.clone(), (set, expires_at));
        (name, expires_at)
    }

    /// The filter and parameters of a set, for the audit log.
    fn describe(&self, name: &str, action: Action) -> Result<Value, Problem> {
        let mut sets = self.live();
        let (set, _) = find_set(&mut sets, name, action)?;
        let mut described = set.verb.parameters();
        described["filter"] = json!(set.described);
        Ok(described)
    }

    /// Takes the next batch out of a set.
    fn take(&self, name: &str, action: Action) -> Result<Batch, Problem> {
        let mut sets = self.live();
        let (set, expires_at) = find_set(&mut sets, name, action)?;
        *expires_at = self.clock.now().plus(SET_LIFETIME);
        let count = set.operations.len().min(BATCH_MAX);
        Ok(Batch {
            verb: set.verb.clone(),
            filter: set.filter.clone(),
            operations: set.operations.drain(..count).collect(),
        })
    }

    /// Returns operations to a set, to be changed by the next request.
    fn put_back(&self, name: &str, operations: Vec<(OperationId, Fence)>) {
        if let Some((set, _)) = self.live().get_mut(name) {
            set.operations.extend(operations);
        }
    }

    /// How many operations of a set are left. A set that is used up is removed.
    fn remaining(&self, name: &str) -> usize {
        let mut sets = self.live();
        let remaining = sets.get(name).map_or(0, |(set, _)| set.operations.len());
        if remaining == 0 {
            sets.remove(name);
        }
        remaining
    }

    /// The sets, without those that have expired.
    fn live(&self) -> MutexGuard<'_, BTreeMap<String, (FrozenSet, Timestamp)>> {
        let now = self.clock.now();
        // No step under the lock can panic halfway through a change of the map.
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|_, (_, expires_at)| *expires_at > now);
        sets
    }
}

fn find_set<'a>(
    sets: &'a mut BTreeMap<String, (FrozenSet, Timestamp)>,
    name: &str,
    action: Action,
) -> Result<&'a mut (FrozenSet, Timestamp), Problem> {
    let set = sets.get_mut(name).ok_or_else(|| {
        Problem::not_found(
            "No set has this name: it is used up, has expired, or was previewed on another gateway. Send the filter for a new preview.",
        )
    })?;
    match set.0.verb.action() == action {
        true => Ok(set),
        false => Err(Problem::conflict(format!(
            "The set was previewed for `{}`.",
            set.0.verb.action().as_str()
        ))),
    }
}
