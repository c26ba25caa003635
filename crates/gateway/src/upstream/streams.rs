//! How many requests an HTTP/2 upstream takes at once, and who is among them.
//!
//! The upstream says it in a SETTINGS frame, at the beginning and whenever it
//! changes its mind. hyper keeps that to itself, so [`Overheard`] reads the
//! frames' heads on their way in and passes over everything else. Until the
//! first settings have come there is room for nobody: what does not speak
//! HTTP/2 is not sent a request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// The most requests on one connection, whatever the upstream allows.
const STREAMS_MAX: usize = 10_000;

const HEAD_BYTES: usize = 9;
const SETTING_BYTES: usize = 6;
const SETTINGS: u8 = 4;
const ACKNOWLEDGED: u8 = 1;
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// The streams of one connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: AtomicUsize,
    max: AtomicUsize,
    closed: AtomicBool,
    changed: Notify,
}

impl Streams {
    pub(super) fn try_open(self: &Arc<Self>) -> Option<Place> {
        let max = self.max.load(Ordering::Acquire);
        let more = |open: usize| (open < max).then_some(open + 1);
        self.open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        Some(Place(Arc::clone(self)))
    }

    /// Waits for a free stream; `None` when the connection is closed.
    pub(super) async fn open(self: &Arc<Self>) -> Option<Place> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            if let Some(place) = self.try_open() {
                return Some(place);
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
pub(super) struct Place(Arc<Streams>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

/// Follows the frames that come in.
#[derive(Debug, Default)]
struct Frames {
    part: Part,
    /// What has come of a head or a setting that is not whole yet.
    carry: Vec<u8>,
    /// Whether the upstream has said anything about itself.
    introduced: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum Part {
    #[default]
    Head,
    /// So many bytes of settings are to come, and so many streams were allowed
    /// in those that have.
    Settings { left: usize, max: Option<u32> },
    /// So many bytes are of no concern.
    Other { left: usize },
}

impl Frames {
    /// Takes what has come, and says how many streams are allowed now, if that
    /// has changed.
    fn feed(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let mut allowed = None;
        while !bytes.is_empty() {
            match self.part {
                Part::Other { left } => {
                    let used = left.min(bytes.len());
                    bytes = &bytes[used..];
                    self.part = match left - used {
                        0 => Part::Head,
                        left => Part::Other { left },
                    };
                }
                Part::Head => {
                    let Some(head) = self.collect::<HEAD_BYTES>(&mut bytes) else {
                        break;
                    };
                    self.part = Part::after(head);
                }
                Part::Settings { left, max } => {
                    let Some(setting) = self.collect::<SETTING_BYTES>(&mut bytes) else {
                        break;
                    };
                    let [id_high, id_low, value @ ..] = setting;
                    let max = match u16::from_be_bytes([id_high, id_low]) {
                        MAX_CONCURRENT_STREAMS => Some(u32::from_be_bytes(value)),
                        _ => max,
                    };
                    let left = left - SETTING_BYTES;
                    self.part = Part::Settings { left, max };
                }
            }
            if let Part::Settings { left, max } = self.part
                && left < SETTING_BYTES
            {
                allowed = self.settled(max).or(allowed);
                // A broken remainder is hyper's to refuse.
                self.part = match left {
                    0 => Part::Head,
                    left => Part::Other { left },
                };
            }
            if let Part::Other { left: 0 } = self.part {
                self.part = Part::Head;
            }
        }
        allowed
    }

    /// Who says nothing at the beginning sets no limit; later, nothing changes.
    fn settled(&mut self, max: Option<u32>) -> Option<usize> {
        let first = !std::mem::replace(&mut self.introduced, true);
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

impl Part {
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

/// A connection whose incoming frames are overheard.
#[derive(Debug)]
pub(super) struct Overheard<S> {
    inner: S,
    frames: Frames,
    streams: Arc<Streams>,
}

impl<S> Overheard<S> {
    pub(super) fn new(inner: S, streams: Arc<Streams>) -> Self {
        Self {
            inner,
            frames: Frames::default(),
            streams,
        }
    }
}

impl<S> Drop for Overheard<S> {
    fn drop(&mut self) {
        self.streams.close();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Overheard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        if let Some(max) = this.frames.feed(&buf.filled()[before..]) {
            this.streams.allow(max);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Overheard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const EMPTY: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const ACKNOWLEDGEMENT: &[u8] = &[0, 0, 0, 4, 1, 0, 0, 0, 0];
    /// A window of 65535, then three streams.
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
    #[case::the_last_word_counts(&[THREE, DATA, ONE], Some(1))]
    #[case::later_silence_changes_nothing(&[THREE, EMPTY], Some(3))]
    #[case::data_says_nothing(&[DATA], None)]
    #[case::an_acknowledgement_says_nothing(&[ACKNOWLEDGEMENT], None)]
    #[case::half_says_nothing(&[&THREE[..15]], None)]
    fn settings_say_how_many_streams(#[case] frames: &[&[u8]], #[case] allowed: Option<usize>) {
        let bytes = frames.concat();
        assert_eq!(Frames::default().feed(&bytes), allowed);
        let mut in_pieces = Frames::default();
        let pieces = bytes.chunks(1).filter_map(|byte| in_pieces.feed(byte));
        assert_eq!(pieces.last(), allowed);
    }
}
