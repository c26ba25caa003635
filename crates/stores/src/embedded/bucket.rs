//! Buckets: tables of finished operations that are forgotten at about the same time,
//! so that space is reclaimed table by table, and never row by row through an index.
//!
//! The name of a bucket is the time at which everything in it is over. Its width
//! follows from how long its records are kept, so that a class has 16 to 32 buckets;
//! widths are powers of two, so classes share buckets and their number is bounded.
//!
//! Records that expire lazily have buckets of their own, which are valid until they
//! are swept; all others are valid until their time is over.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use onceward_core::clock::Timestamp;
use onceward_core::record::Record;

use super::filter::Filter;
use super::index::{TAIL_MAX, Tail};
use super::sql;

/// About a second: nothing is gained by finer buckets.
const WIDTH_MS_MIN: u64 = 1 << 10;
/// About a year.
const WIDTH_MS_MAX: u64 = 1 << 35;
/// The bucket of records that never expire: SQLite's largest number.
const NEVER: u64 = i64::MAX as u64;

/// The moment at which a bucket is over. It names the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BucketEnd(pub(super) u64);

impl BucketEnd {
    /// The bucket for a record that is kept for `span` and is over at `over`.
    pub(super) fn of(over: Timestamp, span: Duration) -> Self {
        let width = width_ms(span);
        let end = over.unix_ms().div_ceil(width).saturating_mul(width);
        Self(end.min(NEVER))
    }

    /// The bucket of a finished operation: everything that is needed of it is
    /// over by then.
    pub(super) fn of_record(record: &Record) -> Option<Self> {
        let terms = &record.terms;
        let span = terms.remember.saturating_add(terms.keep_expired);
        let end = Self::of(record.over_at()?, span);
        Some(if terms.is_lazy() { end.lazily() } else { end })
    }

    /// The same for what expires lazily: a millisecond later, where no bucket
    /// ends otherwise. What never ends is never lazy either.
    fn lazily(self) -> Self {
        Self(self.0.saturating_add(1).min(NEVER))
    }

    fn is_lazy(self) -> bool {
        self.0 % WIDTH_MS_MIN == 1
    }

    /// Whether all in the bucket is over: it may be swept.
    pub(super) fn is_over(self, now: Timestamp) -> bool {
        self.0 <= now.unix_ms()
    }

    /// Whether nothing in the bucket counts any more, swept or not.
    pub(super) fn is_past(self, now: Timestamp) -> bool {
        self.is_over(now) && !self.is_lazy()
    }
}

/// How much time one bucket spans.
fn width_ms(span: Duration) -> u64 {
    let sixteenth = u64::try_from(span.as_millis() / 16).unwrap_or(u64::MAX);
    let below = sixteenth.checked_ilog2().map_or(0, |log| 1 << log);
    below.clamp(WIDTH_MS_MIN, WIDTH_MS_MAX)
}

/// The two families of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Finished operations, by when their keys are forgotten.
    Operations,
    /// Replies that go before their keys do, by when they expire.
    Replies,
}

impl Family {
    /// The name in the table of buckets.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Operations => "kept",
            Self::Replies => "reply",
        }
    }
}

/// A bucket of finished operations.
pub(super) struct OperationBucket {
    /// Its name.
    pub(super) end: BucketEnd,
    /// A filter of the keys in it.
    pub(super) filter: Filter,
    /// The row ids of the newest operations.
    pub(super) tail: Tail,
    rows: AtomicU64,
    first_over_ms: AtomicU64,
    sealed: AtomicU64,
    /// How often the tail was sealed, about: the next seal merges other leaves.
    seals: AtomicU64,
    pub(super) table: String,
    pub(super) create: String,
    pub(super) insert: String,
    pub(super) find: String,
    pub(super) delete: String,
    pub(super) list: String,
    pub(super) read_tail: String,
    pub(super) index_insert: String,
    pub(super) index_find: String,
    pub(super) index_read: String,
    pub(super) index_delete: String,
    pub(super) index_sweep: String,
    pub(super) index_drop: String,
    pub(super) request: String,
    pub(super) sweep: String,
    pub(super) drop: String,
}

impl OperationBucket {
    /// The bucket with this name and these counts.
    pub(super) fn new(end: BucketEnd, tally: Tally, filter: Filter) -> Self {
        let name = |template: &str| template.replace("{ends}", &end.0.to_string());
        let table = name("kept_{ends}");
        let index = name("index_{ends}");
        Self {
            end,
            filter,
            tail: Tail::default(),
            sealed: AtomicU64::new(tally.sealed),
            seals: AtomicU64::new(tally.rows / TAIL_MAX as u64),
            rows: AtomicU64::new(tally.rows),
            first_over_ms: AtomicU64::new(tally.first_over_ms),
            create: name(sql::FINISHED),
            insert: name(sql::FINISHED_INSERT),
            find: name(sql::FINISHED_FIND),
            delete: name(sql::FINISHED_DELETE),
            list: sql::LIST
                .replace("{table}", &table)
                .replace("{replied}", "replied"),
            read_tail: name(sql::FINISHED_TAIL),
            index_insert: name(sql::INDEX_INSERT),
            index_find: name(sql::INDEX_FIND),
            index_read: name(sql::INDEX_READ),
            index_delete: name(sql::INDEX_DELETE),
            index_sweep: sql::SWEEP_ROWS.replace("{table}", &index),
            index_drop: sql::DROP.replace("{table}", &index),
            request: name(sql::FINISHED_REQUEST),
            sweep: sql::SWEEP_ROWS.replace("{table}", &table),
            drop: sql::DROP.replace("{table}", &table),
            table,
        }
    }

    /// Its counts.
    pub(super) fn tally(&self) -> Tally {
        Tally {
            rows: self.rows.load(Ordering::Relaxed),
            first_over_ms: self.first_over_ms.load(Ordering::Relaxed),
            sealed: self.sealed.load(Ordering::Relaxed),
        }
    }

    /// The number of a new seal.
    pub(super) fn next_seal(&self) -> u64 {
        self.seals.fetch_add(1, Ordering::Relaxed)
    }

    /// Only the filler counts.
    pub(super) fn set_tally(&self, tally: Tally) {
        self.rows.store(tally.rows, Ordering::Relaxed);
        self.first_over_ms
            .store(tally.first_over_ms, Ordering::Relaxed);
        self.sealed.store(tally.sealed, Ordering::Relaxed);
    }

    /// How much of it is over.
    pub(super) fn age(&self, now: Timestamp) -> Age {
        if self.end.is_past(now) {
            Age::Over
        } else if self.tally().first_over_ms <= now.unix_ms() {
            Age::PartlyOver
        } else {
            Age::Lasting
        }
    }
}

/// The counts of a bucket of finished operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    /// How many rows.
    pub(super) rows: u64,
    /// When the first of them is over, or earlier.
    pub(super) first_over_ms: u64,
    /// The last row that is in its index.
    pub(super) sealed: u64,
}

impl Tally {
    /// The counts of an empty bucket.
    pub(super) fn empty(end: BucketEnd) -> Self {
        Self {
            rows: 0,
            first_over_ms: end.0,
            sealed: 0,
        }
    }

    /// With one row more.
    pub(super) fn with(self, over: Timestamp) -> Self {
        Self {
            rows: self.rows + 1,
            first_over_ms: self.first_over_ms.min(over.unix_ms()),
            ..self
        }
    }

    /// With this many rows fewer.
    pub(super) fn without(self, rows: u64) -> Self {
        Self {
            rows: self.rows.saturating_sub(rows),
            ..self
        }
    }
}

/// How much of a bucket is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// Nothing.
    Lasting,
    /// Some of it may be; the rows must be read.
    PartlyOver,
    /// All of it.
    Over,
}

/// A bucket of replies.
pub(super) struct ReplyBucket {
    /// Its name.
    pub(super) end: BucketEnd,
    pub(super) table: String,
    pub(super) create: String,
    pub(super) insert: String,
    pub(super) read: String,
    pub(super) delete: String,
    pub(super) request: String,
    pub(super) sweep: String,
    pub(super) drop: String,
}

impl ReplyBucket {
    /// The bucket with this name.
    pub(super) fn new(end: BucketEnd) -> Self {
        let name = |template: &str| template.replace("{ends}", &end.0.to_string());
        let table = name("reply_{ends}");
        Self {
            end,
            create: name(sql::REPLY),
            insert: name(sql::REPLY_INSERT),
            read: name(sql::REPLY_READ),
            delete: name(sql::REPLY_DELETE),
            request: name(sql::REPLY_REQUEST),
            sweep: sql::SWEEP_ROWS.replace("{table}", &table),
            drop: sql::DROP.replace("{table}", &table),
            table,
        }
    }
}

/// All buckets. The filler creates and drops them; readers read them.
#[derive(Default)]
pub(super) struct Buckets {
    operations: RwLock<BTreeMap<BucketEnd, Arc<OperationBucket>>>,
    replies: RwLock<BTreeMap<BucketEnd, Arc<ReplyBucket>>>,
}

impl Buckets {
    /// The buckets of finished operations, the first to go first.
    pub(super) fn operations(
        &self,
    ) -> RwLockReadGuard<'_, BTreeMap<BucketEnd, Arc<OperationBucket>>> {
        self.operations
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an operation whose digest begins like this may have finished.
    pub(super) fn may_hold(&self, prefix: u64, now: Timestamp) -> bool {
        let kept = self.operations();
        lasting(&kept, now).any(|bucket| bucket.filter.may_hold(prefix))
    }

    /// The buckets that may hold an operation whose digest begins like this.
    pub(super) fn candidates(&self, prefix: u64, now: Timestamp) -> Vec<Arc<OperationBucket>> {
        let kept = self.operations();
        lasting(&kept, now)
            .filter(|bucket| bucket.filter.may_hold(prefix))
            .cloned()
            .collect()
    }

    /// The bucket of replies with this name.
    pub(super) fn reply(&self, end: BucketEnd) -> Option<Arc<ReplyBucket>> {
        self.replies().get(&end).cloned()
    }

    /// The buckets of replies, the first to go first.
    pub(super) fn replies(&self) -> RwLockReadGuard<'_, BTreeMap<BucketEnd, Arc<ReplyBucket>>> {
        self.replies.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_operations(&self, bucket: Arc<OperationBucket>) {
        let mut kept = self
            .operations
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        kept.insert(bucket.end, bucket);
    }

    pub(super) fn remove_operations(&self, end: BucketEnd) {
        let mut kept = self
            .operations
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        kept.remove(&end);
    }

    pub(super) fn add_replies(&self, bucket: Arc<ReplyBucket>) {
        let mut replies = self.replies.write().unwrap_or_else(PoisonError::into_inner);
        replies.insert(bucket.end, bucket);
    }

    pub(super) fn remove_replies(&self, end: BucketEnd) {
        let mut replies = self.replies.write().unwrap_or_else(PoisonError::into_inner);
        replies.remove(&end);
    }
}

/// The buckets that count, the last to go first.
fn lasting(
    kept: &BTreeMap<BucketEnd, Arc<OperationBucket>>,
    now: Timestamp,
) -> impl Iterator<Item = &Arc<OperationBucket>> {
    let all = kept.values().rev();
    all.filter(move |bucket| !bucket.end.is_past(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn a_class_has_16_to_32_buckets_between_the_smallest_and_the_largest_width() {
        for hours in [1, 3, 24, 7 * 24, 30 * 24, 365 * 24] {
            let span = hours * HOUR;
            let buckets = span.as_millis() / u128::from(width_ms(span));
            assert!((16..=32).contains(&buckets), "{hours} h: {buckets} buckets");
        }
    }

    #[test]
    fn a_bucket_is_over_only_when_all_in_it_is() {
        let span = 24 * HOUR;
        for ms in [1, 1_700_000_000_000, 1_700_000_000_001, u64::MAX] {
            let over = Timestamp::from_unix_ms(ms);
            let end = BucketEnd::of(over, span);
            assert!(end.0 >= ms.min(NEVER), "{ms}");
            assert!(end.0 - ms.min(NEVER) < width_ms(span), "{ms}");
        }
    }

    #[test]
    fn lazy_buckets_differ_from_others_and_count_until_they_are_swept() {
        let span = 24 * HOUR;
        for ms in [0, 1, 1_700_000_000_000, 1_700_000_000_001] {
            let strict = BucketEnd::of(Timestamp::from_unix_ms(ms), span);
            let lazy = strict.lazily();
            assert!(lazy > strict && lazy.is_lazy() && !strict.is_lazy());
            let later = Timestamp::from_unix_ms(lazy.0);
            assert!(strict.is_over(later) && strict.is_past(later));
            assert!(lazy.is_over(later) && !lazy.is_past(later));
        }
        assert_eq!(BucketEnd(NEVER).lazily(), BucketEnd(NEVER));
        assert!(!BucketEnd(NEVER).is_lazy());
    }

    #[test]
    fn spans_without_end_have_a_bucket_without_end() {
        let never = Timestamp::default().plus(Duration::MAX);
        assert_eq!(BucketEnd::of(never, Duration::MAX), BucketEnd(NEVER));
        assert!(i64::try_from(NEVER).is_ok());
    }
}
