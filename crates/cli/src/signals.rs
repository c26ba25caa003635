//! The signals that end a command: SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal).
//!
//! Unhandled, they end the process without running destructors, so that child processes and
//! temporary directories outlive it. A command that has either runs its work and
//! [`EndSignals::receive`] in one `select!`, which drops the work when a signal arrives.

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that ended a command.
#[derive(Clone, Copy)]
pub(crate) enum EndSignal {
    Interrupt,
    Terminate,
    Hangup,
}

impl EndSignal {
    /// The name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        }
    }

    /// 128 + the signal's number, which shells also report for a program that the signal ended.
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        })
    }
}

/// The handlers of the three signals.
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl EndSignals {
    /// Installs the handlers. From here on the signals no longer end the process by themselves.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let install =
            |kind, name| signal(kind).with_context(|| format!("cannot install the {name} handler"));
        Ok(Self {
            interrupt: install(SignalKind::interrupt(), "SIGINT")?,
            terminate: install(SignalKind::terminate(), "SIGTERM")?,
            hangup: install(SignalKind::hangup(), "SIGHUP")?,
        })
    }

    /// Waits for one of the signals.
    pub(crate) async fn receive(&mut self) -> EndSignal {
        tokio::select! {
            _ = self.interrupt.recv() => EndSignal::Interrupt,
            _ = self.terminate.recv() => EndSignal::Terminate,
            _ = self.hangup.recv() => EndSignal::Hangup,
        }
    }
}
