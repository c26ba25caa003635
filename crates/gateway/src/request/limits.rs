//! Limits per tenant and for all tenants, so that one tenant's load does not
//! degrade the others. A request refused here leaves no trace: the gateway forwards
//! nothing and stores nothing under the key. A small body is hashed, and its operation
//! looked up in memory, before a slot is taken, because a replay from memory needs
//! none; a large body is hashed only with a slot.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use foldhash::fast::RandomState;
use governor::{DefaultKeyedRateLimiter, Quota};
use http_body::{Body, Frame, SizeHint};
use onceward_http::body::BoxError;

use crate::config::{Limits, Rate};
use crate::observe::metrics::Limit;
use crate::runtime::cores::Padded;

const SHARDS: usize = 16;

/// The delay of a refusal for exceeding the rate.
const REFUSAL_PAUSE_MIN: Duration = Duration::from_millis(50);
const REFUSAL_PAUSE_MAX: Duration = Duration::from_millis(250);
/// The golden ratio's fraction of 2^32. Its multiples, modulo 2^32, divide the range
/// almost evenly, however many there are.
const GOLDEN: u32 = 0x9e37_79b9;

/// Counts requests, running operations and buffered bytes against the limits.
pub(crate) struct Limiter {
    settings: ArcSwap<LimitSettings>,
    refusals: AtomicU32,
    running: Arc<AtomicUsize>,
    buffered: Padded<AtomicUsize>,
    tenants: [Mutex<Tenants>; SHARDS],
}

/// The running operations of tenants: those that have some, and those that had some
/// since [`Limiter::tidy`].
type Tenants = HashMap<Box<str>, Arc<RunningCount>, RandomState>;

/// How many operations of a tenant are running, and how many of all tenants.
struct RunningCount {
    of_tenant: AtomicUsize,
    of_all: Arc<AtomicUsize>,
}

struct LimitSettings {
    limits: Limits,
    rate: Option<Arc<TenantRates>>,
}

type TenantRates = DefaultKeyedRateLimiter<Arc<str>>;

impl LimitSettings {
    fn new(limits: &Limits) -> Self {
        Self {
            rate: limits.requests_per_tenant.and_then(tenant_rates),
            limits: limits.clone(),
        }
    }

    fn changed_to(&self, limits: &Limits) -> Self {
        if self.limits.requests_per_tenant != limits.requests_per_tenant {
            return Self::new(limits);
        }
        Self {
            rate: self.rate.clone(),
            limits: limits.clone(),
        }
    }
}

fn tenant_rates(rate: Rate) -> Option<Arc<TenantRates>> {
    let per_second = NonZeroU32::new(rate.per_second)?;
    let burst = NonZeroU32::new(rate.burst)?;
    let quota = Quota::per_second(per_second).allow_burst(burst);
    Some(Arc::new(TenantRates::keyed(quota)))
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            settings: ArcSwap::from_pointee(LimitSettings::new(limits)),
            refusals: AtomicU32::new(0),
            running: Arc::default(),
            buffered: Padded::default(),
            tenants: Default::default(),
        })
    }

    /// Puts new limits in force. Work under way continues. If the rate limit is
    /// unchanged, its counts are kept.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        let settings = self.settings.load();
        if settings.limits != *limits {
            self.settings.store(Arc::new(settings.changed_to(limits)));
        }
    }

    /// Checks a tenant's rate. A refusal is delayed: a client that retries at once
    /// would otherwise keep the gateway busy with refusals, at the cost of all
    /// others.
    pub(crate) async fn admit(&self, tenant: &str) -> Result<(), Limit> {
        let Some(pause) = self.over_rate(tenant) else {
            return Ok(());
        };
        tokio::time::sleep(pause).await;
        Err(Limit::Requests)
    }

    /// The delay of the refusal, if the tenant exceeds its rate.
    fn over_rate(&self, tenant: &str) -> Option<Duration> {
        let settings = self.settings.load();
        let rate = settings.rate.as_ref()?;
        rate.check_key(&Arc::from(tenant)).err()?;
        Some(refusal_pause(self.refusals.fetch_add(1, Ordering::Relaxed)))
    }

    /// Takes a slot among the running operations.
    pub(crate) fn begin(&self, tenant: &str) -> Result<RunningSlot, Limit> {
        let settings = self.settings.load();
        let limits = &settings.limits;
        let mut tenants = self.shard(tenant);
        let count = match tenants.get(tenant) {
            Some(count) => count,
            None => tenants.entry(tenant.into()).or_insert_with(|| {
                Arc::new(RunningCount {
                    of_tenant: AtomicUsize::new(0),
                    of_all: Arc::clone(&self.running),
                })
            }),
        };
        take(&count.of_tenant, 1, limits.in_flight_per_tenant).ok_or(Limit::InFlight)?;
        if take(&count.of_all, 1, limits.in_flight).is_none() {
            count.of_tenant.fetch_sub(1, Ordering::AcqRel);
            return Err(Limit::InFlight);
        }
        Ok(RunningSlot(Arc::clone(count)))
    }

    /// An empty buffer, counted against the limit of buffered bytes.
    pub(crate) fn buffer(self: &Arc<Self>) -> Buffered {
        Buffered {
            limiter: self.clone(),
            bytes: 0,
            refused: false,
        }
    }

    /// Forgets idle tenants.
    pub(crate) fn tidy(&self) {
        for shard in &self.tenants {
            let mut tenants = shard.lock().unwrap_or_else(PoisonError::into_inner);
            tenants.retain(|_, count| count.of_tenant.load(Ordering::Acquire) > 0);
        }
        if let Some(rate) = &self.settings.load().rate {
            rate.retain_recent();
        }
    }

    fn shard(&self, tenant: &str) -> MutexGuard<'_, Tenants> {
        let sum = tenant.bytes().fold(0usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        let shard = &self.tenants[sum % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The delay of a refusal. Those of successive refusals are spread evenly over the
/// range, so that clients refused at the same time do not retry in waves, which would
/// delay other requests.
fn refusal_pause(turn: u32) -> Duration {
    let part = f64::from(turn.wrapping_mul(GOLDEN)) / 2f64.powi(32);
    REFUSAL_PAUSE_MIN + (REFUSAL_PAUSE_MAX - REFUSAL_PAUSE_MIN).mul_f64(part)
}

/// Adds to a count unless the sum would exceed `most`.
fn take(count: &AtomicUsize, more: usize, most: usize) -> Option<usize> {
    count
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            now.checked_add(more).filter(|sum| *sum <= most)
        })
        .ok()
}

/// A slot among the running operations; dropping it frees the slot.
pub(crate) struct RunningSlot(Arc<RunningCount>);

impl Drop for RunningSlot {
    fn drop(&mut self) {
        self.0.of_all.fetch_sub(1, Ordering::AcqRel);
        self.0.of_tenant.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The buffered bytes of one body; dropping it frees them.
pub(crate) struct Buffered {
    limiter: Arc<Limiter>,
    bytes: usize,
    refused: bool,
}

/// The limit of buffered bytes is reached.
#[derive(Debug, thiserror::Error)]
#[error("the limit of buffered bytes is reached")]
struct BufferFull;

impl Buffered {
    /// Counts a body while it arrives. Announced bytes that have not arrived are
    /// not counted: otherwise a client that announces a large body and sends
    /// nothing would take the space from all others.
    pub(crate) fn counting<B>(&mut self, body: B) -> CountedBody<'_, B> {
        CountedBody { body, room: self }
    }

    /// Whether the limit was reached.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    fn take(&mut self, bytes: usize) -> Result<(), BufferFull> {
        let most = self.limiter.settings.load().limits.buffered_bytes;
        let taken = take(&self.limiter.buffered.0, bytes, most);
        self.refused = taken.is_none();
        taken.ok_or(BufferFull)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        self.limiter
            .buffered
            .0
            .fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A body that is counted while it arrives.
pub(crate) struct CountedBody<'a, B> {
    body: B,
    room: &'a mut Buffered,
}

impl<B> Body for CountedBody<'_, B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let counted = frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            self.room.take(frame.data_ref().map_or(0, Bytes::len))?;
            Ok(frame)
        });
        Poll::Ready(counted)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(change: impl FnOnce(&mut Limits)) -> Arc<Limiter> {
        let mut limits = Limits::default();
        change(&mut limits);
        Limiter::new(&limits)
    }

    #[test]
    fn each_tenant_has_its_own_slots() {
        let limiter = limiter(|limits| limits.in_flight_per_tenant = 2);
        let places: Vec<_> = (0..2).filter_map(|_| limiter.begin("a").ok()).collect();
        assert_eq!(places.len(), 2);
        assert_eq!(limiter.begin("a").err(), Some(Limit::InFlight));
        assert!(limiter.begin("b").is_ok());
        drop(places);
        assert!(limiter.begin("a").is_ok());
        assert_eq!(limiter.running.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_tenants_share_the_total_of_slots() {
        let limiter = limiter(|limits| limits.in_flight = 1);
        let place = limiter.begin("a");
        assert_eq!(limiter.begin("b").err(), Some(Limit::InFlight));
        drop(place);
        assert!(limiter.begin("b").is_ok());
    }

    #[test]
    fn only_tenants_with_running_operations_are_remembered() {
        let limiter = limiter(|limits| limits.in_flight_per_tenant = 1);
        let places: Vec<_> = (0..100).map(|n| limiter.begin(&format!("t{n}"))).collect();
        let place = limiter.begin("a");
        drop(places);
        limiter.tidy();
        let remembered = |shard: &Mutex<Tenants>| shard.lock().expect("no panic").len();
        assert_eq!(limiter.tenants.iter().map(remembered).sum::<usize>(), 1);
        assert!(place.is_ok() && limiter.begin("a").is_err());
    }

    #[test]
    fn dropped_buffers_free_their_bytes() {
        let limiter = limiter(|limits| limits.buffered_bytes = 10);
        let [mut room, mut other] = [limiter.buffer(), limiter.buffer()];
        assert!(room.take(3).is_ok() && room.take(4).is_ok());
        assert!(other.take(4).is_err() && other.is_refused());
        drop(room);
        assert!(other.take(10).is_ok() && !other.is_refused());
        drop(other);
        assert_eq!(limiter.buffered.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_rates_counts_survive_a_change_of_other_limits() {
        let rate = |burst| {
            Some(Rate {
                per_second: 1,
                burst,
            })
        };
        let limiter = limiter(|limits| limits.requests_per_tenant = rate(1));
        assert_eq!(limiter.over_rate("a"), None);
        let mut limits = Limits {
            waiters: 7,
            requests_per_tenant: rate(1),
            ..Limits::default()
        };
        limiter.set_limits(&limits);
        assert!(limiter.over_rate("a").is_some());
        limits.requests_per_tenant = rate(2);
        limiter.set_limits(&limits);
        assert_eq!(limiter.over_rate("a"), None);
    }

    #[test]
    fn a_tenant_over_its_rate_does_not_use_up_anothers() {
        let rate = Rate {
            per_second: 1,
            burst: 3,
        };
        let limiter = limiter(|limits| limits.requests_per_tenant = Some(rate));
        let admitted = (0..10).filter(|_| limiter.over_rate("a").is_none()).count();
        assert_eq!(admitted, 3);
        assert_eq!(limiter.over_rate("b"), None);
    }

    #[test]
    fn refused_clients_do_not_retry_in_waves() {
        let rate = Rate {
            per_second: 1,
            burst: 1,
        };
        let limiter = limiter(|limits| limits.requests_per_tenant = Some(rate));
        assert_eq!(limiter.over_rate("a"), None);
        let pauses = (0..).filter_map(|_: u32| limiter.over_rate("a"));
        let mut pauses = Vec::from_iter(pauses.take(1000));
        pauses.sort_unstable();
        assert_eq!(pauses[0], REFUSAL_PAUSE_MIN);
        assert!(pauses[999] < REFUSAL_PAUSE_MAX);
        // Five in each millisecond of the 200, if they were perfectly even.
        let is_spread = |eight: &[Duration]| eight[7] - eight[0] >= Duration::from_millis(1);
        assert!(pauses.windows(8).all(is_spread), "{pauses:?}");
    }
}
