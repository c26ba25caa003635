//! The state that the writer judges by, and the changes that the database lacks.
//!
//! Every effect goes through [`State::take`], when it happens and when the log is read
//! again. What is durable is handed to the filler as [`Changes`] now and then.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::identity::Digest;
use onceward_core::record::Record;

use super::bucket::BucketEnd;
use super::effect::{DocumentChange, Effect, Finished, FinishedRequest, Opened, Unkept};
use super::open_operations::{OpenOperation, OpenOperations, StoredRequest};
use super::overlay::{Overlay, ROW_BYTES, Superseded, UnfilledOperation, UnfilledRequest};

/// About how many bytes the encoded record of an open operation takes.
const RECORD_BYTES: usize = 400;

/// Open operations, the overlay, and the changes since the last fill.
pub(super) struct State {
    pub(super) open: OpenOperations,
    pub(super) overlay: Overlay,
    superseded: Arc<Superseded>,
    /// Numbers up to this one may have been used.
    pub(super) reserved: u64,
    changes: Changes,
    /// Open operations that changed since the last fill.
    changed: Vec<Digest>,
    /// Changes that the database has and whose operations are still in the overlay.
    retiring: VecDeque<Arc<Changes>>,
    /// How many operations of the first of them have left the overlay.
    retired: usize,
}

/// What a fill writes. What was claimed and finished since the last fill is one insert;
/// the table of open operations gets only what is open.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) open_rows_gone: Vec<u64>,
    pub(super) opened: Vec<OpenedRow>,
    pub(super) finished: Vec<Arc<UnfilledOperation>>,
    pub(super) unkept: Vec<Unkept>,
    pub(super) requests_gone: Vec<u64>,
    pub(super) documents: Vec<Arc<DocumentChange>>,
    /// Numbers up to this one may have been used.
    pub(super) reserved: u64,
    /// The last batch of the log whose effects are all in here or before.
    pub(super) through: u64,
    /// The time of that batch.
    pub(super) latest: Timestamp,
    /// About how many bytes the database grows by.
    pub(super) bytes: u64,
    /// Whether segments of the log wait to be given back.
    pub(super) wants_checkpoint: bool,
}

/// A row of the table of open operations.
pub(super) struct OpenedRow {
    pub(super) row: u64,
    pub(super) record: Arc<Record>,
    pub(super) request: Option<u64>,
    /// The request, if the database does not have it.
    pub(super) body: Option<Bytes>,
}

impl State {
    pub(super) fn new(open: OpenOperations, reserved: u64, superseded: Arc<Superseded>) -> Self {
        Self {
            open,
            overlay: Overlay::default(),
            superseded,
            reserved,
            changes: Changes::default(),
            changed: Vec::new(),
            retiring: VecDeque::new(),
            retired: 0,
        }
    }

    /// Takes an effect.
    pub(super) fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Opened(opened) => self.take_opened(opened),
            Effect::Finished(finished) => self.take_finished(finished),
            Effect::Closed(digest) => {
                if let Some(before) = self.open.take(&digest) {
                    self.leave(&before, None);
                }
            }
            Effect::Unkept(unkept) => {
                self.superseded.add(unkept.digest.prefix());
                self.overlay.bury(unkept);
                self.changes.unkept.push(unkept);
            }
            Effect::Document(change) => {
                self.changes.bytes +=
                    (change.body.as_ref().map_or(0, Bytes::len) + ROW_BYTES) as u64;
                let change = Arc::new(change);
                self.overlay.put_document(change.clone());
                self.changes.documents.push(change);
            }
            Effect::Numbers(last) => {
                self.reserved = last;
                self.changes.reserved = last;
            }
        }
    }

    fn take_opened(&mut self, opened: Opened) {
        let digest = opened.record.digest;
        let before = match opened.request {
            Some(_) => self.open.get_mut(&digest).map(|before| before.clone()),
            None => None,
        };
        let request = opened.request.map(|request| {
            let known = before.and_then(|before| before.request);
            match (request.body, known) {
                (None, Some(known)) if known.row == request.row => known,
                (body, _) => StoredRequest {
                    row: request.row,
                    is_filled: body.is_none(),
                    body,
                },
            }
        });
        let body = request.as_ref().and_then(|request| request.body.as_ref());
        self.changes.bytes += (RECORD_BYTES + ROW_BYTES + body.map_or(0, Bytes::len)) as u64;
        let request_row = request.as_ref().map(|request| request.row);
        let before = self.open.put(OpenOperation {
            row: opened.row,
            record: opened.record,
            request,
            filled_row: None,
            is_changed: true,
        });
        match before {
            Some(before) => {
                if !before.is_changed {
                    self.changed.push(digest);
                }
                self.leave(&before, request_row);
            }
            None => self.changed.push(digest),
        }
    }

    fn take_finished(&mut self, finished: Finished) {
        let record = &finished.record;
        let before = self.open.take(&record.digest);
        let request = match finished.request {
            FinishedRequest::None => UnfilledRequest::None,
            FinishedRequest::Body(body) => UnfilledRequest::Body(body),
            FinishedRequest::AsOpen => match before.as_ref().and_then(|op| op.request.clone()) {
                Some(StoredRequest {
                    body: Some(body), ..
                }) => UnfilledRequest::Body(body),
                Some(request) => UnfilledRequest::InFile(request.row),
                None => UnfilledRequest::None,
            },
        };
        if let Some(before) = before {
            self.leave(&before, None);
        }
        let (Some(end), Some(expired)) = (BucketEnd::of_record(record), record.expires_at()) else {
            // A record without an outcome has no bucket, and no step makes one.
            return;
        };
        let apart = BucketEnd::of(expired, record.terms.retention);
        let is_alone = finished.reply.is_none() && matches!(request, UnfilledRequest::None);
        let operation = Arc::new(UnfilledOperation {
            row: finished.row,
            end,
            replied: (apart != end && !is_alone).then_some(apart),
            record: finished.record,
            encoded: finished.encoded,
            reply: finished.reply,
            request,
        });
        self.changes.bytes += operation.bytes();
        self.overlay.put(operation.clone());
        self.changes.finished.push(operation);
    }

    /// What the database has of an open operation goes, but for the request in this
    /// row.
    fn leave(&mut self, before: &OpenOperation, request_kept: Option<u64>) {
        self.changes.open_rows_gone.extend(before.filled_row);
        let request = before.request.as_ref();
        let gone = request.filter(|request| request.is_filled && Some(request.row) != request_kept);
        self.changes
            .requests_gone
            .extend(gone.map(|request| request.row));
    }

    /// About how many bytes the next fill takes in the database and in memory.
    pub(super) fn unfilled_bytes(&self) -> u64 {
        self.changes.bytes
    }

    /// Whether the database lacks anything.
    pub(super) fn has_changes(&self) -> bool {
        let changes = &self.changes;
        !self.changed.is_empty()
            || !changes.finished.is_empty()
            || !changes.open_rows_gone.is_empty()
            || !changes.unkept.is_empty()
            || !changes.documents.is_empty()
            || changes.reserved > 0
    }

    /// Gives the changes to be filled, all of which are durable: up to this batch of
    /// this time.
    pub(super) fn take_changes(&mut self, through: u64, latest: Timestamp) -> Changes {
        let mut changes = std::mem::take(&mut self.changes);
        changes.through = through;
        changes.latest = latest;
        changes.reserved = self.reserved;
        for digest in self.changed.drain(..) {
            let open = self.open.get_mut(&digest);
            if let Some(operation) = open.filter(|operation| operation.is_changed) {
                changes.opened.push(open_row(operation));
            }
        }
        changes
    }

    /// The database has these changes. Finished operations, which are many, stay in the
    /// overlay until [`State::retire`].
    pub(super) fn filled(&mut self, changes: Arc<Changes>) {
        for unkept in &changes.unkept {
            self.overlay.forget_unkept(&unkept.digest, unkept.row);
            self.superseded.remove(unkept.digest.prefix());
        }
        for document in &changes.documents {
            self.overlay.forget_document(document);
        }
        for opened in changes.opened.iter().filter(|row| row.body.is_some()) {
            let open = self.open.get_mut(&opened.record.digest);
            let request = open.and_then(|operation| operation.request.as_mut());
            if let Some(request) = request.filter(|request| Some(request.row) == opened.request) {
                request.body = None;
            }
        }
        self.retiring.push_back(changes);
    }

    /// How many fills are in the database and not yet out of the overlay.
    pub(super) fn retiring(&self) -> usize {
        self.retiring.len()
    }

    /// Takes up to `limit` finished operations out of the overlay that the database
    /// has.
    pub(super) fn retire(&mut self, limit: usize) -> Retired {
        let Some(changes) = self.retiring.front() else {
            return Retired::Nothing;
        };
        let rest = changes.finished.get(self.retired..).unwrap_or_default();
        for operation in rest.iter().take(limit) {
            self.overlay.forget(&operation.record.digest, operation.row);
        }
        self.retired += limit;
        if rest.len() > limit {
            return Retired::Some;
        }
        self.retired = 0;
        match self.retiring.pop_front() {
            Some(changes) => Retired::Last(changes),
            None => Retired::Nothing,
        }
    }
}

/// What [`State::retire`] took out of the overlay.
pub(super) enum Retired {
    Nothing,
    Some,
    /// The last of these changes, which nothing refers to any more.
    Last(Arc<Changes>),
}

/// The row of an operation, which the database has from now on.
fn open_row(operation: &mut OpenOperation) -> OpenedRow {
    operation.is_changed = false;
    operation.filled_row = Some(operation.row);
    let body = match &mut operation.request {
        Some(request) if !request.is_filled => {
            request.is_filled = true;
            request.body.clone()
        }
        _ => None,
    };
    OpenedRow {
        row: operation.row,
        record: operation.record.clone(),
        request: operation.request.as_ref().map(|request| request.row),
        body,
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::record::{Answer, State as RecordState};

    use super::super::effect::OpenedRequest;
    use super::super::effect::tests::record;
    use super::super::overlay::OverlaidState;
    use super::*;

    fn state() -> State {
        State::new(OpenOperations::default(), 0, Arc::default())
    }

    fn open(state: &mut State, number: u64, row: u64, request: Option<OpenedRequest>) -> Digest {
        let record = Arc::new(record(number));
        let digest = record.digest;
        state.take(Effect::Opened(Opened {
            row,
            record,
            request,
        }));
        digest
    }

    fn finish(state: &mut State, number: u64, row: u64, request: FinishedRequest) {
        let mut record = record(number);
        let answer = Answer::NotKept { status: 200 };
        record.finish(RecordState::Completed, answer, Timestamp::from_unix_ms(8));
        let finished = Finished::new(row, Arc::new(record), None, request);
        state.take(Effect::Finished(finished));
    }

    fn fill(state: &mut State) -> Arc<Changes> {
        Arc::new(state.take_changes(1, Timestamp::default()))
    }

    fn rows(changes: &Changes) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
        let opened = changes.opened.iter().map(|opened| opened.row);
        let finished = changes.finished.iter().map(|finished| finished.row);
        (
            changes.open_rows_gone.clone(),
            opened.collect(),
            finished.collect(),
        )
    }

    #[test]
    fn what_was_claimed_and_finished_between_two_fills_is_one_insert() {
        let mut state = state();
        open(&mut state, 1, 1, None);
        open(&mut state, 2, 2, None);
        finish(&mut state, 1, 3, FinishedRequest::None);
        let first = fill(&mut state);
        assert_eq!(rows(&first), (vec![], vec![2], vec![3]));
        assert!(!state.has_changes());
        // The second was open at the fill, so its row is there and goes.
        finish(&mut state, 2, 4, FinishedRequest::None);
        assert_eq!(rows(&fill(&mut state)), (vec![2], vec![], vec![4]));
    }

    #[test]
    fn a_finished_operation_is_in_the_overlay_until_it_is_filled_and_retired() {
        let mut state = state();
        let digest = open(&mut state, 1, 1, None);
        finish(&mut state, 1, 2, FinishedRequest::None);
        let changes = fill(&mut state);
        state.filled(changes);
        let overlaid = state.overlay.get(&digest);
        assert!(matches!(overlaid, OverlaidState::Finished(_)));
        assert!(matches!(state.retire(10), Retired::Last(_)));
        let overlaid = state.overlay.get(&digest);
        assert!(matches!(overlaid, OverlaidState::Unknown));
        assert!(matches!(state.retire(10), Retired::Nothing));
    }

    /// Purged while its fill is under way: the row comes into the database, and must
    /// not be seen there.
    #[test]
    fn a_tombstone_outlives_the_fill_of_what_it_buries() {
        let mut state = state();
        let digest = open(&mut state, 1, 1, None);
        finish(&mut state, 1, 2, FinishedRequest::None);
        let changes = fill(&mut state);
        let place = changes.finished[0].place();
        state.take(Effect::Unkept(place));
        state.filled(changes);
        while !matches!(state.retire(1), Retired::Nothing) {}
        let is_gone = |state: &State| matches!(state.overlay.get(&digest), OverlaidState::Gone);
        assert!(is_gone(&state) && state.superseded.contains(digest.prefix()));
        let changes = fill(&mut state);
        assert_eq!(changes.unkept, [place]);
        assert!(is_gone(&state));
        state.filled(changes);
        assert!(!is_gone(&state) && !state.superseded.contains(digest.prefix()));
    }

    /// The key ran again before the fill of the tombstone; the old row is buried once
    /// more.
    #[test]
    fn a_tombstone_of_an_old_row_does_not_hide_a_newer_operation() {
        let mut state = state();
        let digest = open(&mut state, 1, 1, None);
        finish(&mut state, 1, 2, FinishedRequest::None);
        let changes = fill(&mut state);
        let old = changes.finished[0].place();
        state.filled(changes);
        state.take(Effect::Unkept(old));
        open(&mut state, 1, 3, None);
        finish(&mut state, 1, 4, FinishedRequest::None);
        state.take(Effect::Unkept(old));
        let newer = |state: &State| match state.overlay.get(&digest) {
            OverlaidState::Finished(operation) => operation.row,
            _ => 0,
        };
        assert_eq!(newer(&state), 4);
        let changes = fill(&mut state);
        state.filled(changes);
        assert_eq!(newer(&state), 4);
        assert!(!state.superseded.contains(digest.prefix()));
    }

    #[test]
    fn a_request_is_written_once_and_goes_with_its_operation() {
        let mut state = state();
        let body = Bytes::from_static(b"request");
        let request = |body| Some(OpenedRequest { row: 1, body });
        let digest = open(&mut state, 1, 1, request(Some(body.clone())));
        let first = fill(&mut state);
        assert_eq!(first.opened[0].body, Some(body));
        // It is delivered before the fill is done: the request stays in memory.
        open(&mut state, 1, 2, request(None));
        let in_memory = |state: &mut State| {
            let open = state.open.get_mut(&digest).expect("open");
            open.request.clone().and_then(|request| request.body)
        };
        assert!(in_memory(&mut state).is_some());
        state.filled(first);
        assert!(in_memory(&mut state).is_none());
        finish(&mut state, 1, 3, FinishedRequest::AsOpen);
        let second = fill(&mut state);
        assert_eq!(rows(&second), (vec![1], vec![], vec![3]));
        assert_eq!(second.requests_gone, [1]);
        let request = &second.finished[0].request;
        assert!(matches!(request, UnfilledRequest::InFile(1)));
    }
}
