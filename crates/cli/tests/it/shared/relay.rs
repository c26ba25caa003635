//! A TCP relay with a changeable target: the current primary, like a DNS name or a virtual address, or
//! none, like a broken network.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Relays connections to a port of this machine.
pub(crate) struct Relay {
    port: u16,
    way: watch::Sender<Route>,
    accepting: JoinHandle<()>,
}

/// What happens to open and new connections.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// New ones are relayed to this port; open ones are closed.
    To(u16),
    /// New ones are relayed to this port; open ones continue.
    Moved(u16),
    /// All are closed.
    Cut,
    /// Nothing is relayed and nothing is closed.
    Silent,
    /// New ones are relayed to this port; open ones stay silent.
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

    /// The port of the relay.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Relays to this port and closes open connections.
    pub(crate) fn lead_to(&self, port: u16) {
        self.way.send_replace(Route::To(port));
    }

    /// Relays new connections to this port; open ones continue to their old target.
    pub(crate) fn move_to(&self, port: u16) {
        self.way.send_replace(Route::Moved(port));
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.way.send_replace(Route::Cut);
    }

    /// Stops relaying without closing connections, as after a power failure.
    pub(crate) fn fall_silent(&self) {
        self.way.send_replace(Route::Silent);
    }

    /// Relays new connections to this port and leaves open ones silent, as when another machine takes
    /// over an address.
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
                // If one side breaks, the other is closed too.
                _ = &mut carried => return,
                _ = seen.changed() => {}
            }
            if !matches!(*seen.borrow_and_update(), Route::Moved(_)) {
                break;
            }
        }
    }
    // Both ends stay open while connections are silent.
    while matches!(
        *seen.borrow_and_update(),
        Route::Silent | Route::Forgotten(_)
    ) {
        if seen.changed().await.is_err() {
            return;
        }
    }
}
