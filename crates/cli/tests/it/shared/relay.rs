//! An address that leads elsewhere: to the primary of the moment, as a name or a
//! virtual address does, or nowhere, as a broken network does.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Carries connections to a port of this machine.
pub(crate) struct Relay {
    port: u16,
    way: watch::Sender<Route>,
    accepting: JoinHandle<()>,
}

/// What becomes of connections, those that are open and those that come.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// They are carried to this port; what was open is cut.
    To(u16),
    /// What is open goes on; what comes is carried to this port.
    Moved(u16),
    /// They are cut.
    Cut,
    /// Nothing is carried and nobody is told.
    Silent,
    /// What was open is silent for ever; what comes is carried to this port.
    Forgotten(u16),
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (way, seen) = watch::channel(Route::To(port));
        Self {
            port: listener.local_addr().unwrap().port(),
            way,
            accepting: tokio::spawn(accept(listener, seen)),
        }
    }

    /// Where it is.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on to this port; what was open is cut.
    pub(crate) fn lead_to(&self, port: u16) {
        self.way.send_replace(Route::To(port));
    }

    /// From now on to this port; what was open goes on to where it led.
    pub(crate) fn move_to(&self, port: u16) {
        self.way.send_replace(Route::Moved(port));
    }

    /// From now on to nobody, who is told.
    pub(crate) fn cut(&self) {
        self.way.send_replace(Route::Cut);
    }

    /// From now on to nobody, who is not told: as when a machine loses its power.
    pub(crate) fn fall_silent(&self) {
        self.way.send_replace(Route::Silent);
    }

    /// From now on to this port; nobody is told that what was open leads nowhere:
    /// as when another machine takes over an address.
    pub(crate) fn forget(&self, port: u16) {
        self.way.send_replace(Route::Forgotten(port));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, seen: watch::Receiver<Route>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(carry(stream, seen.clone()));
    }
}

async fn carry(mut stream: TcpStream, mut seen: watch::Receiver<Route>) {
    let way = *seen.borrow_and_update();
    let mut server = None;
    if let Route::To(port) | Route::Moved(port) | Route::Forgotten(port) = way {
        let Ok(connected) = TcpStream::connect(("127.0.0.1", port)).await else {
            return;
        };
        stream.set_nodelay(true).unwrap();
        connected.set_nodelay(true).unwrap();
        let carried = copy_bidirectional(&mut stream, server.insert(connected));
        tokio::pin!(carried);
        loop {
            tokio::select! {
                // Either side may break; the other sees it then.
                _ = &mut carried => return,
                _ = seen.changed() => {}
            }
            if !matches!(*seen.borrow_and_update(), Route::Moved(_)) {
                break;
            }
        }
    }
    // Both ends stay open for as long as nobody is to be told.
    while matches!(
        *seen.borrow_and_update(),
        Route::Silent | Route::Forgotten(_)
    ) {
        if seen.changed().await.is_err() {
            return;
        }
    }
}
