//! The limit on concurrent streams of an HTTP/2 upstream, and the streams in use.
//!
//! The upstream sends the limit in SETTINGS frames, the first at the beginning of
//! the connection. hyper does not expose it, so [`observe`] parses the heads
//! of incoming frames and skips all other frames. Until the first settings have
//! arrived no stream may be opened: a server that does not speak HTTP/2 is sent no
//! request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::io::InspectReader;

/// The most concurrent streams on one connection, even if the upstream allows more.
const STREAMS_MAX: usize = 10_000;

const HEAD_BYTES: usize = 9;
const SETTING_BYTES: usize = 6;
const SETTINGS: u8 = 4;
const ACKNOWLEDGED: u8 = 1;
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Streams {
    open: AtomicUsize,
    max: AtomicUsize,
    closed: AtomicBool,
    changed: Notify,
    /// When the connection was opened.
    opened: Instant,
    /// When the last open stream ended, in microseconds since then.
    unused_since_us: AtomicU64,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            open: AtomicUsize::new(0),
            max: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            changed: Notify::new(),
            opened: Instant::now(),
            unused_since_us: AtomicU64::new(0),
        }
    }

    /// For how long no stream has been open; `None` while one is.
    pub(super) fn idle(&self) -> Option<Duration> {
        if self.open.load(Ordering::Acquire) > 0 {
            return None;
        }
        let unused_since = Duration::from_micros(self.unused_since_us.load(Ordering::Relaxed));
        Some(self.opened.elapsed().saturating_sub(unused_since))
    }

    /// Ends a stream. Only the last one reads the clock: a connection with open streams
    /// is not idle. If it is asked meanwhile it may seem idle for too long, and is then
    /// replaced too early.
    fn end_one(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let unused_since = self.opened.elapsed().as_micros();
            let unused_since = u64::try_from(unused_since).unwrap_or(u64::MAX);
            self.unused_since_us.store(unused_since, Ordering::Relaxed);
        }
        self.changed.notify_one();
    }

    pub(super) fn try_open(self: &Arc<Self>) -> Option<StreamPermit> {
        let max = self.max.load(Ordering::Acquire);
        let more = |open: usize| (open < max).then_some(open + 1);
        self.open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        Some(StreamPermit(Arc::clone(self)))
    }

    /// Waits for a free stream; `None` when the connection is closed.
    pub(super) async fn open(self: &Arc<Self>) -> Option<StreamPermit> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the check, so that no change is missed.
            changed.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            if let Some(permit) = self.try_open() {
                return Some(permit);
            }
            changed.await;
        }
    }

    fn allow(&self, max: usize) {
        self.max.store(max.min(STREAMS_MAX), Ordering::Release);
        self.changed.notify_waiters();
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// A stream in use.
#[derive(Debug)]
pub(super) struct StreamPermit(Arc<Streams>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.end_one();
    }
}

/// Parses incoming frames for the limit on streams.
#[derive(Debug, Default)]
struct FrameParser {
    part: FramePart,
    /// The beginning of a frame head or setting that is not complete yet.
    carry: Vec<u8>,
    /// Whether the first settings have arrived.
    has_settings: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum FramePart {
    #[default]
    Head,
    /// In a SETTINGS frame: the bytes left in it, and its limit on streams so far.
    Settings { left: usize, max: Option<u32> },
    /// In another frame: the bytes left to skip.
    Other { left: usize },
}

impl FrameParser {
    /// Reads incoming bytes; returns the new limit on streams if they set one.
    fn feed(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let mut allowed = None;
        while !bytes.is_empty() {
            match self.part {
                FramePart::Other { left } => {
                    let used = left.min(bytes.len());
                    bytes = &bytes[used..];
                    self.part = match left - used {
                        0 => FramePart::Head,
                        left => FramePart::Other { left },
                    };
                }
                FramePart::Head => {
                    let Some(head) = self.collect::<HEAD_BYTES>(&mut bytes) else {
                        break;
                    };
                    self.part = FramePart::after(head);
                }
                FramePart::Settings { left, max } => {
                    let Some(setting) = self.collect::<SETTING_BYTES>(&mut bytes) else {
                        break;
                    };
                    let [id_high, id_low, value @ ..] = setting;
                    let max = match u16::from_be_bytes([id_high, id_low]) {
                        MAX_CONCURRENT_STREAMS => Some(u32::from_be_bytes(value)),
                        _ => max,
                    };
                    let left = left - SETTING_BYTES;
                    self.part = FramePart::Settings { left, max };
                }
            }
            if let FramePart::Settings { left, max } = self.part
                && left < SETTING_BYTES
            {
                allowed = self.end_settings(max).or(allowed);
                // hyper refuses a frame with a malformed remainder.
                self.part = match left {
                    0 => FramePart::Head,
                    left => FramePart::Other { left },
                };
            }
            if let FramePart::Other { left: 0 } = self.part {
                self.part = FramePart::Head;
            }
        }
        allowed
    }

    /// The limit after a SETTINGS frame: if the first frame sets none, there is
    /// none; a later frame without one changes nothing.
    fn end_settings(&mut self, max: Option<u32>) -> Option<usize> {
        let first = !std::mem::replace(&mut self.has_settings, true);
        match max {
            Some(max) => Some(usize::try_from(max).unwrap_or(usize::MAX)),
            None if first => Some(usize::MAX),
            None => None,
        }
    }

    fn collect<const N: usize>(&mut self, bytes: &mut &[u8]) -> Option<[u8; N]> {
        let used = (N - self.carry.len()).min(bytes.len());
        self.carry.extend_from_slice(&bytes[..used]);
        *bytes = &bytes[used..];
        let whole = <[u8; N]>::try_from(self.carry.as_slice()).ok()?;
        self.carry.clear();
        Some(whole)
    }
}

impl FramePart {
    fn after(head: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, ..] = head;
        let left = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == SETTINGS && flags & ACKNOWLEDGED == 0 {
            Self::Settings { left, max: None }
        } else {
            Self::Other { left }
        }
    }
}

/// A connection whose incoming frames are parsed for the limit on streams. When it
/// is dropped, no more streams can be opened.
pub(super) fn observe<S: AsyncRead>(
    stream: S,
    streams: Arc<Streams>,
) -> InspectReader<S, impl FnMut(&[u8])> {
    let streams = CloseOnDrop(streams);
    let mut parser = FrameParser::default();
    InspectReader::new(stream, move |bytes| {
        if let Some(max) = parser.feed(bytes) {
            streams.0.allow(max);
        }
    })
}

struct CloseOnDrop(Arc<Streams>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const EMPTY: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const ACKNOWLEDGEMENT: &[u8] = &[0, 0, 0, 4, 1, 0, 0, 0, 0];
    /// A window of 65535, then a limit of three streams.
    const THREE: &[u8] = &[
        0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 255, 255, 0, 3, 0, 0, 0, 3,
    ];
    const ONE: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1];
    /// A DATA frame whose content looks like settings.
    const DATA: &[u8] = &[
        0, 0, 15, 0, 0, 0, 0, 0, 1, 0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9,
    ];

    #[rstest]
    #[case::no_limit(&[EMPTY], Some(usize::MAX))]
    #[case::three(&[THREE], Some(3))]
    #[case::the_last_settings_count(&[THREE, DATA, ONE], Some(1))]
    #[case::later_settings_without_a_limit_change_nothing(&[THREE, EMPTY], Some(3))]
    #[case::data_sets_no_limit(&[DATA], None)]
    #[case::an_acknowledgement_sets_no_limit(&[ACKNOWLEDGEMENT], None)]
    #[case::half_a_frame_sets_no_limit(&[&THREE[..15]], None)]
    fn settings_set_the_limit_on_streams(#[case] frames: &[&[u8]], #[case] allowed: Option<usize>) {
        let bytes = frames.concat();
        assert_eq!(FrameParser::default().feed(&bytes), allowed);
        let mut in_pieces = FrameParser::default();
        let pieces = bytes.chunks(1).filter_map(|byte| in_pieces.feed(byte));
        assert_eq!(pieces.last(), allowed);
    }
}
