//! A timer with the resolution of the kernel's clock. Tokio's has a millisecond, which is longer
//! than most responses take.

use std::io;
use std::time::Instant;

#[cfg(target_os = "linux")]
pub(super) use timerfd::Timer;

#[cfg(target_os = "linux")]
mod timerfd {
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    use super::{Instant, io};

    pub(in super::super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        pub(in super::super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            #[expect(
                deprecated,
                reason = "unsound only for types that change their descriptor; the safe successor is to come"
            )]
            let timer = AsyncFd::new(timer)?;
            Ok(Timer(timer))
        }

        /// Waits until this time. A time in the past only lets other tasks run.
        pub(in super::super) async fn until(&self, due: Instant) -> io::Result<()> {
            let wait = due.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                tokio::task::yield_now().await;
                return Ok(());
            }
            let once = Itimerspec {
                it_interval: Timespec::default(),
                it_value: wait.try_into().map_err(io::Error::other)?,
            };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            loop {
                let mut ready = self.0.readable().await?;
                let read = |timer: &AsyncFd<OwnedFd>| {
                    let mut expirations = [0; 8];
                    Ok(rustix::io::read(timer.get_ref(), &mut expirations)?)
                };
                if let Ok(read) = ready.try_io(read) {
                    return read.map(drop);
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Timer)
    }

    pub(super) async fn until(&self, due: Instant) -> io::Result<()> {
        tokio::time::sleep_until(due.into()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_waits_no_shorter_than_asked() {
        let timer = Timer::new().expect("a timer needs one file handle");
        for us in [0, 50, 300, 2000] {
            let due = Instant::now() + Duration::from_micros(us);
            timer.until(due).await.expect("a timer can be set");
            assert!(Instant::now() >= due, "{us}");
        }
    }
}
