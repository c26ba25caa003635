//! An address that leads elsewhere: to the primary of the moment, as a name or a
//! virtual address does, or to nobody, as a broken network does.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Carries connections to a port of this machine.
pub(crate) struct Relay {
    port: u16,
    to: watch::Sender<Option<u16>>,
    accepting: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (to, target) = watch::channel(Some(port));
        Self {
            port: listener.local_addr().unwrap().port(),
            to,
            accepting: tokio::spawn(accept(listener, target)),
        }
    }

    /// Where it is.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on to this port; what was open is cut.
    pub(crate) fn lead_to(&self, port: u16) {
        self.to.send_replace(Some(port));
    }

    /// From now on to nobody; what was open is cut.
    pub(crate) fn cut(&self) {
        self.to.send_replace(None);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: watch::Receiver<Option<u16>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(carry(stream, target.clone()));
    }
}

async fn carry(mut stream: TcpStream, mut target: watch::Receiver<Option<u16>>) {
    let Some(port) = *target.borrow_and_update() else {
        return;
    };
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    stream.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    tokio::select! {
        // Either side may break; the other sees it then.
        _ = copy_bidirectional(&mut stream, &mut server) => {}
        _ = target.changed() => {}
    }
}
